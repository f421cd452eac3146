"""Batch norm over a batch that several processes share: its mean and variance are those of the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class WholeBatchNorm(TorchFunctionMode):
    """Within this mode, batch norm in training mode uses the moments over all processes; all processes must take part.

    It replaces the function instead of the layers: layers, their copies and state dicts do not change, and timm's own layers
    work too. torch's SyncBatchNorm cannot be used because it refuses tensors on the CPU.
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
    """Compute `functional.batch_norm` of the maps (n, c, …) of all processes; n may differ between processes, and may be 0."""
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
    """Return mean (c,), variance (c,) and number () of the values of each channel, over all processes.

    Each process centres its values on its own mean before squares are summed, to avoid cancellation; half precision is widened.
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
    if own <= 1 and float(count) <= 1:  # checked only if there is at most one here, since it synchronises with the device
        raise ValueError("batch norm in training mode needs more than 1 value per channel; the whole batch has no more.")
    mean = (counts * means).sum(0) / count
    return mean, (scatters + counts * (means - mean).square()).sum(0) / count, count


class _Normalise(torch.autograd.Function):
    """x̂ = (x - mean) / √(variance + eps), then weight x̂ + bias; in its gradient the moments depend on every x."""

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
    """Return all axes but the channels."""
    return [axis for axis in range(maps.ndim) if axis != 1]


def _along(values: Tensor, maps: Tensor) -> Tensor:
    """Return a value per channel (c,) in a shape that broadcasts over maps (n, c, …)."""
    return values.view(-1, *[1] * (maps.ndim - 2))
