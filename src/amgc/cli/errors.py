"""Report errors of the user's input or of the machine as one line on stderr. Bugs keep their traceback."""

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
from pathlib import Path

from amgc.runs.folder import is_first_process
from amgc.text import byte_size, printable

FAILED, WRONG_INPUT, STOPPED = 1, 2, 130
PARENT = os.getppid()
# By name, because the modules that define them may import torch.
DAMAGED_FILES = {"FileFormatError", "RunError", "CorruptImageError"}
FAILURES = {"TrainingError", "OutOfMemoryError", "ModelBusyError"}
NO_MEMORY = ("DefaultCPUAllocator", "Storage size calculation overflowed", "numel: integer multiplication overflow")
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


class UsageError(ValueError):
    """An argument names something that does not exist, or arguments contradict each other."""


@dataclass
class Outcome:
    """The exit code of a command."""

    code: int = 0


def check_text(arguments: Sequence[str]) -> None:
    """Raise UsageError for arguments that are not UTF-8, because run.json stores the command."""
    from amgc.data.registry import is_text

    for argument in arguments:
        if not is_text(argument):
            raise UsageError(f"{argument!r} is not UTF-8, so run.json cannot store it; use another name.")


def trust(given: Sequence[str]) -> None:
    """Execute Python files that the user has named, so that a run's folder may refer to them. Their paths are printed first."""
    from amgc.registry import import_file, is_file

    for path in given:
        if not is_file(path):
            raise UsageError(f"--trust takes Python files, whose names end in .py; not {path!r}.")
        say(f"executing {Path(path).resolve()}")
        import_file(Path(path))


@contextmanager
def reported() -> Iterator[Outcome]:
    """Turn errors that the user can fix into a message and an exit code."""
    outcome = Outcome()
    try:
        yield outcome
    except SystemExit as leaving:  # tyro has printed a help text or an error
        outcome.code = leaving.code if isinstance(leaving.code, int) else WRONG_INPUT if leaving.code else 0
    except KeyboardInterrupt:
        outcome.code = STOPPED
        say("interrupted.")
    except BrokenPipeError:  # `amgc show … | head`
        outcome.code = FAILED
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        code = exit_code(error)
        if code is None and is_first_process():
            raise
        outcome.code = code or FAILED
        if os.environ.get("AMGC_DEBUG") or (not is_first_process() and _failed_first()):
            traceback.print_exc()
        else:
            say(f"error: {message(error)}")


def say(text: str) -> None:
    """Print a line to stderr, in the first process only. Control characters of names are replaced."""
    if is_first_process():
        lines = [printable(line) for line in text.split("\n")]
        print("amgc: " + "\n".join(lines), file=sys.stderr, flush=True)


def _failed_first() -> bool:
    """Return whether this process failed on its own, not because the first process ended and closed the connection."""
    time.sleep(3)
    return os.getppid() == PARENT and "TORCHELASTIC_RUN_ID" not in os.environ  # torchrun reports the first failure


def exit_code(error: Exception) -> int | None:
    """Return 1 or 2 for an error that is reported as a message, None for a bug."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & (DAMAGED_FILES | FAILURES) or isinstance(error, ImportError | MemoryError) or _no_memory(error):
        return FAILED
    if isinstance(error, FileNotFoundError | NotADirectoryError | FileExistsError | ValueError):
        return WRONG_INPUT
    return FAILED if isinstance(error, OSError) else None


def _no_memory(error: Exception) -> bool:
    """Return whether torch could not allocate a tensor; on the CPU it says so by the text of a RuntimeError."""
    on_gpu = "OutOfMemoryError" in {kind.__name__ for kind in type(error).__mro__}
    return on_gpu or (isinstance(error, RuntimeError) and any(text in str(error) for text in NO_MEMORY))


def message(error: Exception) -> str:
    """Return the message of an error, with advice for errors of the system."""
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return (
            f"the disk is full{_place(error)}. Free some space, then continue: a run with `amgc resume`, which keeps all "
            "finished tasks; any other command by repeating it, because it has changed nothing."
        )
    if isinstance(error, PermissionError):
        return f"no permission for {error.filename!r}; change its permissions or choose another folder."
    if isinstance(error, OSError) and error.errno == errno.EROFS:
        return f"{error.filename!r} is on a read-only disk; choose another folder."
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename!r}" if error.filename else error.strerror
    if isinstance(error, MemoryError) or _no_memory(error):
        return f"out of memory ({str(error).strip()}); smaller batches, images and numbers of features need less."
    return str(error) or type(error).__name__


def _place(error: OSError) -> str:
    """Return the folder and its free space."""
    if not error.filename:
        return ""
    try:
        folder = os.path.dirname(os.path.abspath(os.fsdecode(error.filename)))
        return f" ({folder}: {byte_size(shutil.disk_usage(folder).free)} free)"
    except OSError:
        return f" ({error.filename!r})"
