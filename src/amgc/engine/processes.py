"""Collective operations of the processes of a run: the share of a batch that each computes, and the whole batch."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from lightning_fabric import Fabric
from torch import Tensor

from amgc.data.image_files import available_cores
from amgc.engine.batchnorm import WholeBatchNorm
from amgc.engine.config import Machine, Precision
from amgc.runs.folder import is_first_process


class Processes:
    """Lightning Fabric for device, precision and DDP, and the collective operations that a run needs."""

    def __init__(self, machine: Machine) -> None:
        world = int(os.environ.get("WORLD_SIZE", machine.devices))  # set by torchrun
        device = machine.device if machine.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        self.fabric = Fabric(
            accelerator=device,
            devices=local,
            num_nodes=max(1, world // max(local, 1)),
            strategy="ddp" if world > 1 else "auto",
            precision=machine.precision,
        )
        if machine.threads or local > 1:
            torch.set_num_threads(machine.threads or max(1, available_cores() // local))
        self.fabric.launch()
        if self.count > 1:
            atexit.register(_leave)

    @property
    def device(self) -> torch.device:
        return self.fabric.device

    @property
    def count(self) -> int:
        return self.fabric.world_size

    @property
    def is_first(self) -> bool:
        return is_first_process()

    def share(self, total: int) -> slice:
        """Return which rows of a batch of `total` this process computes."""
        rank = self.fabric.global_rank
        return slice(total * rank // self.count, total * (rank + 1) // self.count)

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows (n, …) of all processes, in order; gradients flow back to the process that a row came from.

        Every process then computes the same loss of the same batch. The backward pass sums over processes what each
        sends back, so each network's gradient is `count` times its share's, and DDP's average is the batch's gradient.
        """
        if self.count == 1:
            return rows
        sizes = self._all_gather(torch.tensor(len(rows), device=rows.device)).tolist()
        padding = rows.new_zeros(max(sizes) - len(rows), *rows.shape[1:])
        gathered = self._all_gather(torch.cat([rows, padding]))
        return torch.cat([part[:size] for part, size in zip(gathered, sizes, strict=True)])

    def whole_batch_norm(self) -> AbstractContextManager[object]:
        """Return a context in which batch norm in training mode uses the batch of all processes."""
        return WholeBatchNorm() if self.count > 1 else nullcontext()

    def _all_gather(self, tensor: Tensor) -> Tensor:
        gathered = self.fabric.all_gather(tensor, sync_grads=tensor.requires_grad)
        assert isinstance(gathered, Tensor)
        return gathered

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over processes."""
        if self.count == 1:
            return tensor
        total = self.fabric.all_reduce(tensor, reduce_op="sum")
        assert isinstance(total, Tensor)
        return total

    def take_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Copy the values of the first process into these tensors."""
        if self.count > 1:
            for tensor in tensors:
                torch.distributed.broadcast(tensor, 0)


class OneProcess(Processes):
    """One of several processes alone, for computations in which the others do not take part."""

    def __init__(self, processes: Processes, precision: Precision) -> None:
        self.fabric, device = processes.fabric, processes.device
        if processes.count > 1:
            devices = 1 if device.index is None else [device.index]
            self.fabric = Fabric(accelerator=device.type, devices=devices, precision=precision)


def _leave() -> None:
    """End gloo's threads before the interpreter exits: one that needs the interpreter later would abort the process."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def peak_memory() -> int:
    """Return the peak memory of this process so far in bytes; 0 if the system does not report it."""
    if sys.platform == "win32":
        return 0
    import resource  # not available on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
