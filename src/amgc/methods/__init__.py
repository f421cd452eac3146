"""One file per method. It declares what is trained, what is remembered and how classes are scored; the engine does the rest.

All that the author of a method imports:

>>> from amgc.methods import Batch, Features, Hyper, Method, Phase, PlainImages, Task, method, option

A method's file is imported without torch, so that the command line can show its hyper-parameters quickly: it takes torch and
the mathematics from `amgc.methods.lazy`.
"""

from amgc.methods.contract import Batch, Features, Hyper, LinearHead, Method, Phase, PlainImages, Task
from amgc.methods.registry import method
from amgc.options import option

__all__ = ["Batch", "Features", "Hyper", "LinearHead", "Method", "Phase", "PlainImages", "Task", "method", "option"]
