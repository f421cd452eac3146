"""Lessons of few images, which are in memory until there are enough to be written, and the states of a model with them.

If few images are written at a time, what they add follows from two versions of the folder.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from amgc.model import changes
from amgc.model.changes import Lesson
from amgc.model.folder import PATIENCE, Folder
from amgc.model.state import State
from amgc.text import plural

if TYPE_CHECKING:
    from typing_extensions import Self

LOG = logging.getLogger("amgc.model")


@dataclass(frozen=True)
class Held:
    """Lessons that are in memory, by class; one lesson of each class."""

    lessons: Mapping[str, Lesson] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """The number of images of each class."""
        return {label: lesson.added[label] for label, lesson in self.lessons.items()}

    def plus(self, lesson: Lesson) -> Held:
        """Add a lesson of one class."""
        (label,) = lesson.added
        return Held({**self.lessons, label: self.lessons[label].joined(lesson) if label in self.lessons else lesson})

    def without(self, label: str) -> Held:
        return Held({name: lesson for name, lesson in self.lessons.items() if name != label})

    def renamed(self, label: str, new: str) -> Held:
        """Give a class another name. If another class has it, both become one."""
        if label not in self.lessons:
            return self
        lesson = self.lessons[label]
        classifier = copy.deepcopy(lesson.classifier).rename(label, new)
        moved = replace(lesson, classifier=classifier, added={new: lesson.added[label]})
        return self.without(label).plus(moved)

    def added_to(self, state: State) -> State:
        """Return the state after all lessons."""
        lesson: Lesson | None = None
        for one in self.lessons.values():
            lesson = one if lesson is None else lesson.joined(one)
        return state if lesson is None else changes.learn(state, lesson)


class States:
    """What the folder of a model contains, and what the model answers with: the same, and the lessons in memory.

    patience : seconds that a change waits while another process changes the model.
    """

    def __init__(self, folder: Folder, state: State, patience: float = PATIENCE) -> None:
        self._folder, self._stored, self._state = folder, state, state
        self._writing = threading.RLock()  # between threads of this object; the folder's lock is between processes
        self.patience = patience
        self._held = Held()

    @property
    def state(self) -> State:
        """The current state, with lessons in memory. It is never modified."""
        return self._state

    @property
    def stored(self) -> State:
        """The state in the folder, without lessons in memory. It is never modified, so `restore` can return to it."""
        return self._stored

    @property
    def held(self) -> Held:
        """Lessons that are in memory only."""
        return self._held

    def refresh(self) -> bool:
        """Load changes made by other processes. Returns whether there were any."""
        with self._writing:
            before = self._stored
            if self._folder.manifest().identity != before.manifest.identity:
                self._show(State.read(self._folder, before), self._held)
            return self._stored is not before

    @contextmanager
    def locked(self) -> Iterator[State]:
        """Hold the locks of this object and of its folder, and give the folder's current state."""
        with self._writing, self._folder.lock(self.patience):
            self.refresh()
            yield self._stored

    def write(self, state: State, held: Held | None = None) -> State:
        """Replace the state, first in the folder, then in memory, and return it as stored. Call within `locked`.

        held : lessons in memory from now on; None if they stay the same.
        """
        self._show(state.write(self._folder), self._held if held is None else held)
        return self._stored

    def write_held(self) -> dict[str, int]:
        """Write the lessons that are in memory only. Returns their number of images by class."""
        with self.locked() as state:
            counts = self._held.counts
            if counts:
                self.write(self._held.added_to(state), Held())
        return counts

    def restore(self, state: State, held: Held | None = None) -> Self:
        """Replace the current state by an earlier one of this model, or by that of another model, and lessons in memory."""
        with self.locked() as now:
            if state.manifest.identity == now.manifest.identity and state.manifest.created == now.manifest.created:
                self._show(now, held or Held())
            else:
                self.write(changes.restored(state, now), held or Held())
        return self

    def _show(self, stored: State, held: Held) -> None:
        """Replace the states in memory."""
        if held.lessons and _rows(stored) != _rows(self._stored) and self._stored.extractor is not None:
            lost = plural(sum(held.counts.values()), stored.manifest.noun)
            LOG.warning("lost were %s in memory: the model was replaced by one with other features", lost)
            held = Held()
        shown = held.added_to(stored)
        if held.lessons:
            shown = replace(shown, manifest=replace(stored.manifest, classes=shown.class_counts))
        self._stored, self._held, self._state = stored, held, shown


def _rows(state: State) -> tuple[object, ...]:
    """Return what features follow from."""
    return state.checksum, state.manifest.features.name, state.manifest.features.dim, state.manifest.image
