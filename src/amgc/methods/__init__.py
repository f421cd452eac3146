"""Class-incremental methods, one file each. A method declares what is trained, what is remembered and how classes are scored.

The author of a method imports everything from here:

>>> from amgc.methods import Batch, Features, Hyper, Method, Phase, Task, TaskImages, class_means, method, option

The package's own methods import torch and the mathematics from `amgc.methods.lazy`, so that `amgc run --help` can list their
hyper-parameters without importing torch.
"""

from amgc.methods.contract import Batch, Features, Hyper, LinearHead, Method, Phase, Task, TaskImages
from amgc.methods.frozen import Frozen, FrozenHyper, class_means
from amgc.methods.registry import method
from amgc.options import option

__all__ = [
    "Batch",
    "Features",
    "Frozen",
    "FrozenHyper",
    "Hyper",
    "LinearHead",
    "Method",
    "Phase",
    "Task",
    "TaskImages",
    "class_means",
    "method",
    "option",
]
