"""Data sets, augmentation, and the split of classes into tasks.

>>> from amgc.data import Augment, TaskStream, class_order, load, split_tasks
>>> digits = load("digits")
>>> stream = TaskStream(digits, class_order(10, seed=1993), split_tasks(10, tasks=5))
>>> len(stream), stream.class_names[:2], stream.train(0).labels.unique().tolist()
(5, ('4', '2'), [0, 1])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amgc.data.registry import data_set, data_sets, load
from amgc.lazy import lazy_names
from amgc.options import option

if TYPE_CHECKING:
    from amgc.data.augment import Augment, BatchRandom
    from amgc.data.decode import CorruptImageError
    from amgc.data.images import Dataset, Images
    from amgc.data.tasks import TaskStream, class_order, order_of, split_tasks

__all__ = [
    "Augment",
    "BatchRandom",
    "CorruptImageError",
    "Dataset",
    "Images",
    "TaskStream",
    "class_order",
    "data_set",
    "data_sets",
    "load",
    "option",
    "order_of",
    "split_tasks",
]

# These need torch. They are imported when first used, so that `amgc list data` does not wait for it.
__getattr__ = lazy_names(
    __name__,
    {
        "augment": ("Augment", "BatchRandom"),
        "decode": ("CorruptImageError",),
        "images": ("Dataset", "Images"),
        "tasks": ("TaskStream", "class_order", "order_of", "split_tasks"),
    },
)
