"""Joint training, the upper bound: the only method that sees the images of all classes so far."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from amgc.methods.contract import Hyper, LinearHead, Method, Task
from amgc.methods.finetune import STEPS
from amgc.methods.lazy import torch
from amgc.methods.registry import method

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor


@method("joint", Hyper(first=STEPS, later=STEPS), sources={"first": "PyCIL's finetune.py", "later": "PyCIL's finetune.py"})
class Joint(Method[Hyper]):
    """Joint training, the upper bound: trained from scratch in every task, on the images of all seen classes."""

    sees_old_data = True

    def __init__(self, hyper: Hyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.untrained = copy.deepcopy(network.state_dict())

    def begin(self, task: Task, generator: torch.Generator) -> None:
        self.network.load_state_dict(self.untrained)
        self.head = LinearHead(self.network.dim, self.device)
        super().begin(task, generator)
