"""1×1 convolutions with a stride: the results of torch's own, and no crash with few channels."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import few
from torch import nn

from amgc.features import build
from amgc.features.branches import add_branches
from amgc.features.pointwise import StridedPointwise, make_safe

sizes = st.integers(1, 9)


@few
@given(
    height=sizes,
    width=sizes,
    stride=st.sampled_from([2, 3, (1, 2), (2, 1)]),
    bias=st.booleans(),
    groups=st.sampled_from([1, 2]),
)
def test_it_computes_what_torchs_convolution_computes(height, width, stride, bias, groups) -> None:
    """Channels first and float64, where torch's own is correct. Gradients are compared too."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(4, 6, 1, stride, bias=bias, groups=groups)).double()
    images = torch.randn(2, 4, height, width, dtype=torch.float64, requires_grad=True)
    results = []
    for convert in (lambda _: None, make_safe):
        convert(network)
        out = network(images)
        results.append([out, *torch.autograd.grad(out.pow(3).sum(), [images, *network.parameters()])])
    assert isinstance(network[0], StridedPointwise)
    torch.testing.assert_close(*results)


def test_only_strided_ones_of_one_pixel_are_replaced_and_weights_keep_their_names() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, 2), nn.Conv2d(4, 4, 1, 2), nn.Conv2d(4, 4, 1, 2, padding=1))
    names = list(network.state_dict())
    with pytest.raises(ValueError, match=r"layer '3' is a Conv2d of 1 × 1 pixel .* 4 input channels"):
        make_safe(network)
    make_safe(network[:3])
    assert [type(layer) is StridedPointwise for layer in network] == [False, False, True, False]
    assert list(network.state_dict()) == names


class Padded(nn.Conv2d):
    """A convolution with its own forward method, like timm's with TensorFlow's padding."""

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(maps, self.weight, self.bias, self.stride)


def test_a_layer_that_cannot_be_replaced_is_refused_if_it_may_crash() -> None:
    make_safe(Padded(16, 4, 1, 2))
    with pytest.raises(ValueError, match=r"Padded of 1 × 1 pixel with a stride and 15 input channels.*another network"):
        make_safe(nn.Sequential(Padded(15, 4, 1, 2)))


STEPS = """
import torch
from amgc.features import build
from amgc.features.branches import add_branches

for width in (1 / 16, 3 / 16):  # shortcuts of 4, 8 and 16 channels, and of 12, 24 and 48
    network = build("resnet18", image_shape=(3, 16, 16), width=width, stem="cifar")
    add_branches(network)
    network.to(memory_format=torch.channels_last)
    for _ in range(20):
        images = torch.randn(3, 3, 16, 16).contiguous(memory_format=torch.channels_last)
        network(images).square().sum().backward()
print("done")
"""


@pytest.mark.cpus
def test_narrow_networks_train_without_a_crash() -> None:
    """In a process of its own, because torch's convolution writes out of bounds here and kills the process."""
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]


@pytest.mark.parametrize(("name", "replaced"), [("resnet18", 3), ("resnet32", 2)])
def test_our_networks_have_no_other_kind(name: str, replaced: int) -> None:
    network = build(name, image_shape=(3, 16, 16), **({"shortcut": "B"} if name == "resnet32" else {}))
    add_branches(network)
    kinds = [type(layer) for layer in network.modules() if isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1)]
    assert kinds == [StridedPointwise] * replaced


def test_models_of_timm_are_replaced_too(timm: ModuleType) -> None:
    network = build("timm:resnet18", image_shape=(3, 64, 64), pretrained=False)
    assert sum(isinstance(layer, StridedPointwise) for layer in network.modules()) == 3
