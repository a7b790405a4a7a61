"""Test kit: a toy world and scripted partners to run any rollout controller without a model.

chat = ToyChat()
table = script({(0,): "RRR", (1,): "LLRRR"}, run_seed=0, step=0, task_id="t")
engine = Engine(ScriptedSampler(table, chat), ToyEnv, chat, None, limits, run_seed=0, step=0)
[tree] = asyncio.run(engine.run([Task("t", {"goal": 3})], Flat(group_size=2)))
"""

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence

from patr.envs.base import Message, StepResult
from patr.samplers.base import Sample, SampleRequest, SamplerError
from patr.seeds import generator_for, seed_for
from patr.types import Path, Task, Turn

_MOVES = {"R": ("right", 1), "L": ("left", -1), "W": ("wait", 0)}


class ToyChat:
    """One token a character: its code point. Token 0 ends a turn."""

    stop_ids = (0,)

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return self.encode("".join(message.content for message in messages))

    def observation(self, text: str, after: str) -> tuple[int, ...]:
        """The text; after a turn that was cut, its missing end first."""
        return self.encode(text) if after == "stop" else (*self.stop_ids, *self.encode(text))

    def decode_turn(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids if i not in self.stop_ids)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))


class ToyEnv:
    """A corridor: walk from cell 0 to cell `goal`.

    Task data: goal, number of cells to walk; slip (default 0), the chance that a move comes to nothing.
    Texts: 'R' one cell right, 'L' one cell left (not beyond 0), 'W' wait; spaces around them are ignored and anything
    else is 'invalid' and does nothing. The observation is the cell's number. Reward 1 on reaching the goal, which ends
    the episode. The outcome is the share of the way walked.

    before_step(task, steps taken so far, text): called first in every step; it may raise or block.
    """

    def __init__(self, before_step: Callable[[Task, int, str], None] = lambda task, steps, text: None):
        self._before_step = before_step
        self._cell = self._steps = 0
        self.closed = False

    def opening(self, task: Task) -> list[Message]:
        return [Message("user", f"to {task.data['goal']}:")]

    def reset(self, task: Task) -> list[Message]:
        self._task, self._cell, self._steps = task, 0, 0
        return self.opening(task)

    def step(self, text: str, seed: int) -> StepResult:
        self._before_step(self._task, self._steps, text)
        self._steps += 1
        action, move = _MOVES.get(text.strip(), ("invalid", 0))
        if generator_for(seed, "slip").random() >= self._task.data.get("slip", 0):
            self._cell = max(0, self._cell + move)
        done = self._cell == self._task.data["goal"]
        return StepResult(str(self._cell), float(done), done, action, {"cell": self._cell})

    def fork(self) -> "ToyEnv":
        return copy.copy(self)

    def outcome(self) -> float:
        return self._cell / self._task.data["goal"]

    def close(self) -> None:
        self.closed = True


def script(turns: Mapping[Path, str | Sequence[str]], run_seed: int, step: int, task_id: str) -> dict[int, str]:
    """Seed to text, for a ScriptedSampler: what each branch says, turn by turn.

    turns: the own turns of every branch, parents included; a string is one turn a character. A branch that is to be
    expanded must have exactly the turns it takes, since its children count theirs from there.
    """
    table = {}
    for path, texts in turns.items():
        inherited = sum(len(turns[path[:i]]) for i in range(1, len(path)))
        for turn, text in enumerate(texts, start=inherited):
            table[seed_for(run_seed, "sample", step, task_id, path, turn)] = text
    return table


class ScriptedSampler:
    """Says what `answer` says: a table from seed to text, or a function of (prompt_ids, seed).

    A text longer than the request allows is cut. Every token id has its own log-probability, -id / 1000. Nothing is
    ever cached.
    passes(seed): passes of the event loop to wait before answering, to shuffle the order of answers.
    """

    def __init__(
        self,
        answer: Mapping[int, str] | Callable[[tuple[int, ...], int], str],
        chat: ToyChat,
        *,
        max_context: int = 1000,
        passes: Callable[[int], int] = lambda seed: 0,
    ):
        self.max_context = max_context
        self.requests: list[SampleRequest] = []
        self._answer, self._chat, self._passes = answer, chat, passes

    async def sample(self, request: SampleRequest) -> Sample:
        self.requests.append(request)
        for _ in range(self._passes(request.seed)):
            await asyncio.sleep(0)
        return self.answer(request)

    def answer(self, request: SampleRequest) -> Sample:
        """The sample, without waiting."""
        ids = (*self._chat.encode(self._text(request)), *self._chat.stop_ids)[: request.max_tokens]
        return Sample(
            ids=ids,
            logprobs=tuple(-i / 1000 for i in ids),
            finish_reason="stop" if ids[-1] in request.stop_ids else "length",
            weight_version=0,
            prefilled_tokens=len(request.prompt_ids),
            cached_tokens=0,
        )

    def _text(self, request: SampleRequest) -> str:
        if not isinstance(self._answer, Mapping):
            return self._answer(request.prompt_ids, request.seed)
        if request.seed not in self._answer:
            said = self._chat.decode_turn(request.prompt_ids)
            raise SamplerError(f"the script has no answer after {said!r}: a branch took more turns than were written")
        return self._answer[request.seed]


class ScriptedScorer:
    """Scores each history by a function, which may raise."""

    def __init__(self, score: Callable[[Sequence[Turn]], float]):
        self._score = score

    async def score(self, task: Task, histories: Sequence[Sequence[Turn]]) -> list[float]:
        return [self._score(history) for history in histories]
