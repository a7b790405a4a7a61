"""What a run shows on the terminal."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

_CONSOLE = Console(stderr=True)


class Progress:
    """A bar with step, ETA and a few numbers; plain lines now and then where there is no terminal."""

    def __init__(self, title: str, total: int, done: int = 0):
        self._title, self._total = title, total
        self._every = max(1, total // 10)
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=_CONSOLE,
            disable=not _CONSOLE.is_terminal,
        )
        self._task = self._bar.add_task(title, total=total, completed=done, numbers="")

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        self._bar.stop()

    def advance(self, step: int, **numbers: float) -> None:
        text = "  ".join(f"{name} {value:.3g}" for name, value in numbers.items())
        self._bar.update(self._task, completed=step, numbers=text)
        if not _CONSOLE.is_terminal and (step % self._every == 0 or step == self._total):
            self.say(f"{self._title} {step}/{self._total}  {text}")

    @staticmethod
    def say(text: str) -> None:
        _CONSOLE.print(text, highlight=False)
