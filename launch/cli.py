"""What the launchers share: mistakes of the user end in one line, not in a traceback."""

import re

from absl import app, flags, logging


def run(main) -> None:
    """Parse the flags and run main(). Exits with status 1 and one line for what the user can put right."""
    logging.set_verbosity(logging.WARNING)
    try:
        app.run(lambda _: _explained(main), flags_parser=_parsed)
    except KeyboardInterrupt:
        raise SystemExit("stopped; the same command goes on from the last checkpoint") from None


class _Step(flags.ArgumentParser):
    def parse(self, argument: str | int) -> str | int:
        if argument == "best":
            return argument
        try:
            return int(argument)
        except ValueError:
            raise ValueError("expected the number of a step, or 'best'") from None


def define_step(help_text: str) -> flags.FlagHolder:
    """The flag --step of those who read a workdir."""
    return flags.DEFINE(_Step(), "step", None, help_text)


def _parsed(arguments: list[str]) -> list[str]:
    try:
        rest = app.parse_flags_with_usage(arguments)
    except (AttributeError, KeyError, TypeError) as error:  # ml_collections, for a key the config does not have
        near = re.search(r'Did you mean "(.+?)" instead of "(.+?)"', str(error))
        unknown, hint = (repr(near[2]), f"; did you mean {near[1]!r}?") if near else (error, "")
        raise SystemExit(f"error: the config has no such key as a --config flag names: {unknown}{hint}") from None
    if len(rest) > 1:
        raise SystemExit(f"error: {' '.join(rest[1:])}: only flags are expected, as --name=value")
    if flags.FLAGS.verbosity > 0:
        logging.set_verbosity(flags.FLAGS.verbosity)
    return rest


def _explained(main) -> None:
    try:
        main()
    except (ValueError, FileNotFoundError, FloatingPointError) as error:
        raise SystemExit(f"error: {error}") from error
