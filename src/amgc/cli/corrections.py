"""Commands that correct a model of your own images: `amgc rename` and `amgc undo`."""

from __future__ import annotations

from typing import Annotated

from tyro.conf import Positional, arg

from amgc.cli.output import show
from amgc.cli.own_images import ModelFolder
from amgc.text import plural


def rename(
    model: ModelFolder,
    label: Annotated[Positional[str], arg(metavar="OLD", help="name of the class")],
    new: Annotated[Positional[str], arg(metavar="NEW", help="its new name")],
    join: Annotated[bool, arg(help="if there is a class NEW already: make one class of both")] = False,
) -> None:
    """Rename a class. With --join, make one class of two, as if their images had been learned as one class."""
    from amgc.model import edits
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
        edits.rename(folder, old, name)
    show(f"Renamed {label!r} to {new!r}.")


def undo(
    model: ModelFolder,
    clear: Annotated[bool, arg(help="do not undo; delete the stored state before the last change")] = False,
) -> None:
    """Take back the last change of a model: learn, rename, join or merge, not forget. One change can be taken back."""
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
