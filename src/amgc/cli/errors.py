"""What goes wrong because of the input or the machine is one line on stderr; a bug keeps its traceback."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from amgc.runs.folder import is_first_process
from amgc.text import byte_size

FAILED, WRONG_INPUT, STOPPED = 1, 2, 130
PARENT = os.getppid()
# By name, because the modules that define them may need torch, and a help text must not.
DAMAGED = {"FileFormatError", "RunError", "CorruptImageError"}
WORKING = {"TrainingError", "OutOfMemoryError", "ModelBusyError"}
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


class UsageError(ValueError):
    """The command line asks for something that does not exist or does not fit together."""


@dataclass
class Outcome:
    """How a command ended."""

    code: int = 0


def check_text(arguments: Sequence[str]) -> None:
    """A run's files hold the command that it was started with."""
    from amgc.data.registry import is_text

    for argument in arguments:
        if not is_text(argument):
            raise UsageError(f"{argument!r} is not UTF-8, so a run's files cannot hold it; choose or make another name.")


@contextmanager
def reported() -> Iterator[Outcome]:
    """Turn what the user can do something about into a message and an exit code."""
    outcome = Outcome()
    try:
        yield outcome
    except SystemExit as leaving:  # tyro has printed a help text, or what is wrong with the flags
        outcome.code = leaving.code if isinstance(leaving.code, int) else WRONG_INPUT if leaving.code else 0
    except KeyboardInterrupt:
        outcome.code = STOPPED
        say("stopped at once.")
    except BrokenPipeError:  # `amgc show … | head`
        outcome.code = FAILED
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        code = exit_code(error)
        if code is None and is_first_process():
            raise
        outcome.code = code or FAILED
        if os.environ.get("AMGC_DEBUG") or (not is_first_process() and _alone()):
            traceback.print_exc()
        else:
            say(f"error: {message(error)}")


def say(text: str) -> None:
    """A line on stderr, from the first process."""
    if is_first_process():
        print(f"amgc: {text}", file=sys.stderr, flush=True)


def _alone() -> bool:
    """Whether this helping process failed by itself. When the first one ends, it only loses its connection."""
    time.sleep(3)
    return os.getppid() == PARENT and "TORCHELASTIC_RUN_ID" not in os.environ  # torchrun reports what failed first


def exit_code(error: Exception) -> int | None:
    """1 or 2 for what is told as one message, None for a bug."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & (DAMAGED | WORKING) or isinstance(error, ImportError | MemoryError):
        return FAILED
    if isinstance(error, FileNotFoundError | NotADirectoryError | FileExistsError | ValueError):
        return WRONG_INPUT
    return FAILED if isinstance(error, OSError) else None


def message(error: Exception) -> str:
    """The error for people, with advice where the system's own words have none."""
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return (
            f"the disk is full{_place(error)}. Make room, then go on: with `amgc resume` if this was a run, of which no "
            "finished task is lost, else with the same command, as nothing has changed."
        )
    if isinstance(error, PermissionError):
        return f"no permission for {error.filename!r}; change its permissions, or choose another folder."
    if isinstance(error, OSError) and error.errno == errno.EROFS:
        return f"{error.filename!r} is on a disk that cannot be written; choose another folder."
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename!r}" if error.filename else error.strerror
    if isinstance(error, MemoryError) or "OutOfMemoryError" in {kind.__name__ for kind in type(error).__mro__}:
        return f"out of memory ({error}); a run needs less with a smaller --first.batch-size and --later.batch-size."
    return str(error) or type(error).__name__


def _place(error: OSError) -> str:
    """Where, and how much space is left there."""
    if not error.filename:
        return ""
    try:
        folder = os.path.dirname(os.path.abspath(os.fsdecode(error.filename)))
        return f" ({folder}: {byte_size(shutil.disk_usage(folder).free)} free)"
    except OSError:
        return f" ({error.filename!r})"
