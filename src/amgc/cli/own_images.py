"""Commands that change, merge, export and describe models of your own images, such as `amgc forget`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from tyro.conf import Positional, arg

from amgc.cli.errors import UsageError
from amgc.cli.output import print_json, show, show_table
from amgc.cli.tyro_flags import several
from amgc.runs.folder import RUN
from amgc.text import byte_size, plural

if TYPE_CHECKING:
    from amgc.model import Info

ModelFolder: TypeAlias = Annotated[Positional[str], arg(metavar="MODEL", help="folder of the model")]
NewModelFolder: TypeAlias = Annotated[str, arg(aliases=["-o"], metavar="MODEL", help="folder of the new model")]
ClassFolders: TypeAlias = Annotated[
    Positional[tuple[str, ...]],
    several(
        "FOLDER",
        "folders with one sub-folder per class, files of vectors, or sources: wds:PATTERN, parquet:PATTERN, hf:NAME, s3://…",
    ),
]
Json: TypeAlias = Annotated[bool, arg(name="json", help="print JSON")]


def forget(model: ModelFolder, label: Annotated[Positional[str], arg(metavar="CLASS", help="name of the class")]) -> None:
    """Make a model forget a class."""
    from amgc.model.folder import Folder
    from amgc.model.info import read_info
    from amgc.model.manifest import normal

    folder = Folder(model)
    if folder.manifest().private:  # raises an error before a lock is created
        from amgc.model import Model  # imports torch

        Model.open(model).forget(label)
    else:
        with folder.lock():
            folder.forget(normal(label))
    text = f"Forgot {label!r}; the model has {plural(len(folder.manifest().classes), 'class')}."
    if read_info(model).covariance == "shared":
        text += " Its contribution to the covariance shared by all classes cannot be separated and remains."
    show(text)


def rename(
    model: ModelFolder,
    label: Annotated[Positional[str], arg(metavar="OLD", help="name of the class")],
    new: Annotated[Positional[str], arg(metavar="NEW", help="its new name")],
    join: Annotated[bool, arg(help="if there is already a class NEW, make one class of both")] = False,
) -> None:
    """Rename a class. With --join, make one class of two, as if their images had been learned as one class."""
    from amgc.model.folder import Folder
    from amgc.model.manifest import checked_name, normal

    folder, old, name = Folder(model), normal(label), checked_name(new)
    if join and name in folder.manifest().classes:
        from amgc.model import Model  # imports torch

        count = Model.open(model).rename(label, new, join=True).classes[name]
        show(f"Joined {label!r} with {new!r}, which has {plural(count, folder.manifest().noun)} now.")
        return
    folder.manifest()  # raises an error before a lock is created
    with folder.lock():
        folder.rename(old, name)
    show(f"Renamed {label!r} to {new!r}.")


def undo(
    model: ModelFolder,
    clear: Annotated[bool, arg(help="do not undo; delete the stored state before the last change")] = False,
) -> None:
    """Undo the last change to a model: learn, rename, join or merge, but not forget. Only one change can be undone."""
    from amgc.model.folder import Folder

    folder = Folder(model)
    before = folder.manifest().classes
    with folder.lock():
        if clear:
            folder.drop_previous()
        else:
            folder.undo()
    if clear:
        show("Deleted the state before the last change, which cannot be undone now.")
        return
    manifest = folder.manifest()
    after = manifest.classes
    changed = [
        f"{name!r} has {plural(after[name], manifest.noun)} again" if name in after else f"{name!r} is gone"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]
    show(f"Undone: {', '.join(changed)}. The model has {plural(len(after), 'class')}.")


def merge(
    models: Annotated[Positional[tuple[str, ...]], several("MODEL", "folders of at least two models")],
    out: NewModelFolder,
) -> None:
    """Create a model with the classes of several, as if it had learned all of their images. They need the same extractor."""
    if len(models) < 2:
        raise UsageError("specify at least two models: amgc merge A B -o C")

    from amgc.model import Model

    merged = Model.merged([Model.open(path) for path in models], out)
    show(f"{out}: {plural(len(merged.classes), 'class')} from {plural(sum(merged.classes.values()), merged.info().noun)}.")


def model_of_run(
    run: Annotated[Positional[str], arg(metavar="RUN", help="folder of a run")],
    out: NewModelFolder,
    trust: Annotated[
        tuple[str, ...], arg(metavar="FILE.py …", help="Python files with your own method or extractor that the run needs")
    ] = (),
) -> None:
    """Create a model from a finished run of `amgc run`: its network, its classifier and its class statistics."""
    from amgc.cli import errors
    from amgc.engine.model_from_run import model_from_run

    inside = sorted(path.parent.name for path in Path(run).glob(f"*/{RUN}"))
    if inside and not (Path(run) / RUN).exists():
        choices = ", ".join(f"{run}/{name}" for name in inside)
        raise UsageError(f"{run!r} contains several runs; specify one of them: {choices}")
    errors.trust(trust)
    model = model_from_run(run, out)
    more = "It can learn more classes." if model.info().changeable else "It has no class statistics, so it cannot learn."
    show(f"{out}: {plural(len(model.classes), 'class')}. {more}")


def info(model: ModelFolder, as_json: Json = False) -> None:
    """Describe a model: classes, stored statistics, what is never stored, and files."""
    from amgc.model.info import read_info

    found = read_info(model)
    if as_json:
        print_json(dataclasses.asdict(found), indent=1)
        return
    show(*describe(found))
    if found.classes:
        header = ["class", f"{found.noun}s", *(["margin"] if found.margins else [])]
        rows = [[name, f"{count:,}" if found.changeable else "?"] for name, count in found.classes.items()]
        for row in rows if found.margins else ():
            row.append(f"{found.margins[row[0]]:.3g}")
        show("")
        show_table(header, rows)


def export(
    model: ModelFolder, onnx: Annotated[str, arg(metavar="FILE", help="file to write; an existing one is replaced")]
) -> None:
    """Export a model as one ONNX file. Input: RGB images of any size, uint8 (n, height, width, 3), or vectors, float32 (n, d).
    Output: probabilities, number and name of the class. Resizing and normalisation are part of the file.

    The file is written only if its predictions agree with the model's: probabilities to 1e-5 for each unit of difference
    between scores, because features are float32. Rejection (`predict --reject`) is not exported. Needs the extra `onnx`.
    """
    from amgc.model import Model

    opened = Model.open(model)
    made = opened.export_onnx(onnx)
    show(
        f"{made.path}: {plural(len(made.classes), 'class')}, {byte_size(made.bytes)}. Probabilities in onnxruntime "
        f"differ from the model's by at most {made.difference:.0e} on {made.images} {opened.info().noun}s of noise."
    )


def describe(found: Info) -> list[str]:
    """Describe everything in a model but its classes."""
    features, side = found.features, found.image["size"]
    dim = f"{features['dim']:,} features" if features["dim"] else "fitted when the model first learns"
    described = f"{features['name']}, {dim}" if features["name"] else "chosen when the model first learns"
    return [
        f"{found.path}: {plural(len(found.classes), 'class')} from {plural(found.images, found.noun)}",
        f"Features: {described}" + (f", images of {side} × {side} pixels" if side else ""),
        *([f"Chosen because {features['why']}"] if features.get("why") else []),
        *([f"Background: how the features of {known} vary on public images"] if (known := features.get("background")) else []),
        *([f"Extractor: {features['checksum'][:16]} (models with the same one can be merged)"] if features["checksum"] else []),
        *([] if found.margins else ["Margins: 0 for every class"]),
        f"Created {found.created}, changed {found.changed} (change {found.generation}), amgc {found.amgc}",
        f"Files, {byte_size(sum(found.bytes.values()))}:",
        *[f"  {name}: {byte_size(size)}" for name, size in found.bytes.items()],
        "Stored:",
        *[f"  {text}" for text in found.kept],
        "Never stored:",
        *[f"  {text}" for text in found.not_kept],
        *(["What others can find out from the model:"] if found.reveals else []),
        *[f"  {text}" for text in found.reveals],
    ]
