"""Commands that correct a model of your own images: `amgc rename` and `amgc undo`."""

from __future__ import annotations

from typing import Annotated

from tyro.conf import Positional, arg

from amgc.cli.own_images import ModelFolder, show
from amgc.text import plural


def rename(
    model: ModelFolder,
    label: Annotated[Positional[str], arg(metavar="OLD", help="name of the class")],
    new: Annotated[Positional[str], arg(metavar="NEW", help="its new name")],
    join: Annotated[bool, arg(help="if there is a class NEW already: make one class of both")] = False,
) -> None:
    """Rename a class. With --join, make one class of two, as if their images had been learned as one class."""
    from amgc.model import Model
    from amgc.model.model import normal

    opened = Model.open(model)
    before = opened.classes
    opened.rename(label, new, join=join)
    if len(opened.classes) == len(before):
        show(f"Renamed {label!r} to {new!r}.")
    else:
        show(f"Joined {label!r} with {new!r}, which has {plural(opened.classes[normal(new)], 'image')} now.")


def undo(
    model: ModelFolder,
    clear: Annotated[bool, arg(help="do not undo; delete the stored state before the last change")] = False,
) -> None:
    """Take back the last change of a model: learn, forget, rename, join or merge. One change can be taken back."""
    from amgc.model import Model

    opened = Model.open(model)
    if clear:
        opened.drop_previous()
        show("Deleted the state before the last change, which cannot be undone now.")
        return
    before = opened.classes
    after = opened.undo().classes
    changed = [
        f"{name!r} has {plural(after[name], 'image')} again" if name in after else f"{name!r} is gone"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]
    show(f"Undone: {', '.join(changed)}. The model has {plural(len(after), 'class')}.")
