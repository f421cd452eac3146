"""Change the layers of a network without changing its output: fold batch norm, add and merge 1×1 branches.

SSRE (Zhu et al. 2022) does this between tasks. Modules keep their names and positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d
from torch.nn.modules.batchnorm import _BatchNorm

from amgc.features.extractor import Extractor, evaluating
from amgc.features.pointwise import every_second


def fold_batchnorm(network: Extractor) -> int:
    """Fold each batch norm that follows a convolution into it, as in evaluation mode: w γ/σ, and a bias. Returns how many.

    One image is passed through the network to find out which layer follows which. A batch norm is not folded if its input is
    not the output of a convolution, if one of the two is used more than once, or if it does more than normalise, as some of
    timm's do.
    """
    pairs = _pairs(network)
    for conv, (name, norm) in pairs.items():
        place = Folded(conv, norm)
        assert norm.running_mean is not None and norm.running_var is not None
        scale = (norm.running_var.double() + norm.eps).rsqrt()
        if norm.affine:
            scale = scale * norm.weight.detach().double()
        shift = -norm.running_mean.double() * scale
        if conv.bias is not None:
            shift = shift + conv.bias.detach().double() * scale
        if norm.affine:
            shift = shift + norm.bias.detach().double()
        conv.weight = nn.Parameter((conv.weight.detach().double() * scale[:, None, None, None]).to(conv.weight))
        conv.bias = nn.Parameter(shift.to(conv.weight))
        parent, _, child = name.rpartition(".")
        setattr(network.get_submodule(parent), child, place)
    return len(pairs)


class Folded(nn.Identity):
    """Replaces a batch norm that was folded into a convolution. It stores both layers, to unfold them."""

    def __init__(self, conv: nn.Conv2d, norm: _BatchNorm) -> None:
        super().__init__()
        self.layers = conv, norm  # in a tuple, so that they are not registered as submodules
        self.biased = conv.bias is not None


def unfold_batchnorm(network: nn.Module) -> None:
    """Restore the layers from before `fold_batchnorm`. In evaluation mode the output does not change.

    The convolutions keep their folded weights. The batch norms only add the biases.
    """
    for name, layer in list(network.named_modules()):
        if isinstance(layer, Folded):
            conv, norm = layer.layers
            assert conv.bias is not None and norm.running_mean is not None and norm.running_var is not None
            norm.to(conv.weight).reset_parameters()
            norm.running_mean.copy_(-conv.bias.detach())  # the shift could not be used: some batch norms have none
            norm.running_var.fill_(1 - norm.eps)
            conv.bias = nn.Parameter(torch.zeros_like(conv.bias)) if layer.biased else None
            parent, _, child = name.rpartition(".")
            setattr(network.get_submodule(parent), child, norm)


def _pairs(network: Extractor) -> dict[nn.Conv2d, tuple[str, _BatchNorm]]:
    """Return each convolution with the batch norm (and its name) that is applied to its output."""
    norms = {layer: name for name, layer in network.named_modules() if isinstance(layer, _BatchNorm) and _only_norm(layer)}
    if not norms:
        return {}
    calls: dict[nn.Module, int] = {}
    made: dict[int, tuple[nn.Conv2d, Tensor]] = {}  # by the id of the output; outputs are kept, so that no id is reused
    pairs: dict[nn.Conv2d, tuple[str, _BatchNorm]] = {}

    def watch(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        calls[layer] = calls.get(layer, 0) + 1
        if isinstance(layer, nn.Conv2d):
            made[id(output)] = layer, output
        elif layer in norms and layer.track_running_stats and id(inputs[0]) in made:
            pairs[made[id(inputs[0])][0]] = norms[layer], layer

    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d | _BatchNorm)]
    handles = [layer.register_forward_hook(watch) for layer in layers]
    try:
        with evaluating(network):
            network(torch.zeros(1, *network.image_shape, device=next(network.parameters()).device))
    finally:
        for handle in handles:
            handle.remove()
    return {conv: pair for conv, pair in pairs.items() if calls[conv] == calls[pair[1]] == 1}


def _only_norm(layer: _BatchNorm) -> bool:
    """Return whether the layer only normalises. An activation inside it would be lost by folding."""
    return type(layer).forward in (_BatchNorm.forward, nn.SyncBatchNorm.forward)


class BranchedConv2d(nn.Conv2d):
    """A 3×3 convolution plus a 1×1 convolution of the same input, `branch`, without bias."""

    branch: nn.Parameter
    alone: bool = False  # ignore the branch

    def forward(self, maps: Tensor) -> Tensor:
        out = super().forward(maps)
        if self.alone:
            return out
        if set(self.stride) != {1}:
            maps = every_second(maps, self.stride)
        return out + conv2d(maps, self.branch, groups=self.groups)


def add_branches(network: nn.Module) -> int:
    """Add a branch of zeros to each 3×3 convolution except the first, the stem. Returns how many convolutions have one.

    Convolutions whose padding does not equal their dilation get none, because the outputs would not align.
    """
    convs = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    chosen = [conv for conv in convs[1:] if conv.kernel_size == (3, 3) and conv.padding == conv.dilation]
    for conv in chosen:
        if type(conv) is nn.Conv2d:
            conv.__class__ = BranchedConv2d
            conv.branch = nn.Parameter(torch.zeros_like(conv.weight[:, :, :1, :1]))
    return len(chosen)


def merge_branches(network: nn.Module) -> None:
    """Add each branch to the centre of its 3×3 kernel. This gives plain convolutions with the same output."""
    for conv in branched(network):
        with torch.no_grad():
            conv.weight[:, :, 1:2, 1:2] += conv.branch
        del conv.branch
        conv.__class__ = nn.Conv2d  # type: ignore[assignment]


@contextmanager
def without_branches(network: nn.Module) -> Iterator[None]:
    """Ignore the branches inside the block."""
    convs = branched(network)
    for conv in convs:
        conv.alone = True
    try:
        yield
    finally:
        for conv in convs:
            conv.alone = False


def branched(network: nn.Module) -> list[BranchedConv2d]:
    return [layer for layer in network.modules() if isinstance(layer, BranchedConv2d)]
