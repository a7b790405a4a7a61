"""What the launchers share: mistakes of the user end in one line, not in a traceback."""

import dis
import re
import traceback

from absl import app, flags, logging

CONFIG_MODULE = "config_config"  # the name that ml_collections gives to the file of --config


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
        rest = flags.FLAGS(arguments)
        if "config" in flags.FLAGS:
            flags.FLAGS.config.items()  # ml_collections keeps back that a file is missing until it is used
    except (flags.Error, AttributeError, KeyError, TypeError, OSError) as error:
        if (cause := _from_config_file(error)) is None:
            raise SystemExit(f"error: {_flag_mistake(error)}") from None
        raise (SystemExit(f"error: {cause}") if _is_check_of(CONFIG_MODULE, cause) else cause) from None
    if len(rest) > 1:
        raise SystemExit(f"error: {' '.join(rest[1:])}: only flags are expected, as --name=value")
    if flags.FLAGS.verbosity > 0:
        logging.set_verbosity(flags.FLAGS.verbosity)
    return rest


def _flag_mistake(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"--config: {str(error).splitlines()[-1].strip()}"
    if not isinstance(error, (AttributeError, KeyError)):
        return str(error)
    near = re.search(r'Did you mean "(.+?)" instead of "(.+?)"', str(error))  # as ml_collections says it
    unknown, hint = (repr(near[2]), f"; did you mean {near[1]!r}?") if near else (error, "")
    return f"the config has no such key as a --config flag names: {unknown}{hint}"


def _from_config_file(error: BaseException | None) -> BaseException | None:
    """What was raised while the config file ran: absl and ml_collections put errors of their own on top."""
    while error is not None and CONFIG_MODULE not in _modules(error):
        error = error.__context__
    return error


def _explained(main) -> None:
    from patr.samplers.base import SamplerError

    try:
        main()
    except (ValueError, FileNotFoundError, FloatingPointError, SamplerError) as error:
        if flags.FLAGS.verbosity > 0 or not _is_check_of("patr", error):
            raise
        raise SystemExit(f"error: {error}") from error


def _is_check_of(package: str, error: BaseException) -> bool:
    """Whether a raise statement of the package made the error, so that its message is an answer to the input.

    Of an error that a library made, or a call that failed, where it came from says more.
    """
    last = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    raised = last.tb_frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    return raised and _modules(error)[-1].split(".")[0] == package


def _modules(error: BaseException) -> list[str]:
    """Names of the modules an error came through, the one that raised it last."""
    return [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
