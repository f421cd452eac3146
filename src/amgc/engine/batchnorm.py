"""Batch norm of a batch that several processes share: they train on the moments of the whole of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class WholeBatchNorm(TorchFunctionMode):
    """Inside, batch norm in training mode normalises by the moments over all processes; all must pass their shares.

    It takes the place of the function and not of the layers: these, their copies and state dicts stay what they are, and
    timm's own layers are covered. torch's SyncBatchNorm is no help, because it refuses tensors on the CPU.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return (batch_norm if func is functional.batch_norm else func)(*args, **(kwargs or {}))


def batch_norm(
    maps: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`functional.batch_norm` of the maps (n, c, …) of all processes, n of them here: perhaps none, or fewer than elsewhere."""
    if not training:
        return functional.batch_norm(maps, running_mean, running_var, weight, bias, False, momentum, eps)
    mean, variance, count = moments(maps.detach())
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean), momentum)
            running_var.lerp_((variance * count / (count - 1)).to(running_var), momentum)
    normalised: Tensor = _Normalise.apply(maps, weight, bias, mean, variance, count, eps)  # type: ignore[no-untyped-call]
    return normalised


def moments(maps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (c,), variance (c,) and number () of the values of each channel, over all processes.

    Each centres its values on its own mean before squares are summed, so that nothing cancels; half precision is widened.
    """
    axes, dtype = _axes(maps), torch.promote_types(maps.dtype, torch.float32)
    own = maps.numel() // maps.shape[1]
    own_mean = maps.sum(axes, dtype=dtype) / max(own, 1)
    squares = (maps - _along(own_mean, maps)).square().sum(axes)
    parts = torch.cat([own_mean, squares, own_mean.new_tensor([own])])
    gathered = [torch.empty_like(parts) for _ in range(distributed.get_world_size())]
    distributed.all_gather(gathered, parts)
    whole, channels = torch.stack(gathered), len(own_mean)
    means, scatters, counts = whole[:, :channels], whole[:, channels:-1], whole[:, -1:]
    count = counts.sum()
    if own <= 1 and float(count) <= 1:  # one in all: at most one here, so that only then is the device waited for
        raise ValueError("batch norm in training mode needs more than 1 value per channel; the whole batch has no more.")
    mean = (counts * means).sum(0) / count
    return mean, (scatters + counts * (means - mean).square()).sum(0) / count, count


class _Normalise(torch.autograd.Function):
    """x̂ = (x - mean) / √(variance + eps), then weight x̂ + bias; its gradient knows that the moments depend on every x."""

    @staticmethod
    def forward(
        ctx: Any,
        maps: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        count: Tensor,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(maps, weight, mean, (variance + eps).rsqrt(), count)
        return functional.batch_norm(maps, mean, variance, weight, bias, eps=eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """∂x = weight / σ (g - ⟨g⟩ - x̂ ⟨g x̂⟩), ⟨⟩ over all processes; weight and bias get this share's, which DDP adds up."""
        (gradient,) = gradients
        maps, weight, mean, scale, count = ctx.saved_tensors
        axes = _axes(maps)
        normalised = (maps - _along(mean, maps)) * _along(scale, maps)
        own = torch.stack([gradient.sum(axes, dtype=mean.dtype), (gradient * normalised).sum(axes)])
        whole = own.clone()
        distributed.all_reduce(whole)
        first, second = (_along(part, maps) for part in whole / count)
        slope = _along(scale if weight is None else scale * weight, maps)
        to_maps = ((gradient - first - normalised * second) * slope).to(maps.dtype)
        to_weight, to_bias = own[1] if ctx.needs_input_grad[1] else None, own[0] if ctx.needs_input_grad[2] else None
        return to_maps, to_weight, to_bias, None, None, None, None


def _axes(maps: Tensor) -> list[int]:
    """All but the channels'."""
    return [axis for axis in range(maps.ndim) if axis != 1]


def _along(values: Tensor, maps: Tensor) -> Tensor:
    """A value per channel (c,), to be broadcast over maps (n, c, …)."""
    return values.view(-1, *[1] * (maps.ndim - 2))
