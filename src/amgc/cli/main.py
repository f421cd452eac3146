"""`amgc COMMAND …`. The module of a command is imported when the command is called.

A command is a function whose parameters tyro turns into flags. `run`, `resume` and `compare` read their arguments themselves,
because their flags depend on the chosen methods and data.
"""

from __future__ import annotations

import difflib
import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence

import amgc
from amgc.cli.errors import WRONG_INPUT, reported

COMMANDS = {  # module.function, and the text of `amgc --help`
    "run": ("run.run", "train methods on a sequence of tasks and print accuracies; without arguments: handwritten digits"),
    "resume": ("run.resume", "continue a run that was stopped or that crashed"),
    "compare": ("compare.compare", "compare methods: a grid of runs on this machine, Ray or Slurm; finished runs are reused"),
    "show": ("results.show", "print the accuracies of runs, finished or not"),
    "table": ("results.table", "the paper's Table 1, 2 or 3 with your runs in it, as text, Markdown, LaTeX or CSV"),
    "report": ("results.report", "write runs as one HTML page with tables, figures and all settings; needs no network"),
    "learn": ("learn.learn", "own images: learn classes from folders of images; the first call creates the model"),
    "predict": ("predict.predict", "own images: predict the classes of images"),
    "sort": ("sort.sort", "own images: sort photos into a folder for each class; this can be undone"),
    "rename": ("own_images.rename", "own images: rename a class, or join two classes"),
    "undo": ("own_images.undo", "own images: undo the last change to a model"),
    "forget": ("own_images.forget", "own images: make a model forget a class"),
    "merge": ("own_images.merge", "own images: merge models that learned at different places into one"),
    "info": ("own_images.info", "own images: classes, stored statistics and what is never stored"),
    "evaluate": ("predict.evaluate", "own images: accuracy, confusion and calibration of a model"),
    "export": ("own_images.export", "own images: export a model as one ONNX file, for programs without amgc"),
    "model": ("own_images.model_of_run", "own images: create a model from a finished run"),
    "serve": ("serve.serve", "own images: serve a web page to teach a model, and an HTTP API"),
    "list": ("list.list_names", "methods, data sets, feature extractors and presets, by name"),
}
READ_ARGUMENTS = ("run", "resume", "compare")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns its exit code: 0, 1 (failed), 2 (wrong input) or 130 (stopped by the user)."""
    # Let waiting threads sleep: on a busy machine, spinning threads make a run ten to a hundred times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads it when it is imported
    gc.set_threshold(100_000)  # importing torch creates hundreds of thousands of objects that are never freed
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape what the terminal cannot show, and names that are not UTF-8
            stream.reconfigure(errors="backslashreplace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if given[0] == "--version":
        print(f"amgc {amgc.__version__}")
        return 0
    name, rest = given[0], given[1:]
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean 'amgc {close[0]}'?" if close else "`amgc --help` lists them."
        print(f"amgc: error: there is no command {name!r}; {hint}", file=sys.stderr)
        return WRONG_INPUT
    module, function = COMMANDS[name][0].split(".")
    with reported() as outcome:
        command = getattr(importlib.import_module(f"amgc.cli.{module}"), function)
        if name in READ_ARGUMENTS:
            outcome.code = command(rest) or 0
        else:
            import tyro

            from amgc.cli.tyro_flags import without_typeguard

            outcome.code = tyro.cli(without_typeguard(command), args=rest, prog=f"amgc {name}") or 0
    return outcome.code


def overview() -> str:
    """Return the text of `amgc --help`."""
    lines = [f"  {name:<8} {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: amgc COMMAND …",
            "",
            "Train a classifier on new classes, task after task, without storing old images.",
            "",
            *lines,
            "",
            "`amgc COMMAND --help` lists its flags. Try `amgc run`: it takes less than a minute and needs no download.",
        ]
    )
