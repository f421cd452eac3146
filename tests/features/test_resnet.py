"""The ResNets against published numbers and against the architecture written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from amgc.features.registry import build

pytestmark = pytest.mark.cpus


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("stem", "expected"),
    [
        ("imagenet", 11_689_512 - 513_000),  # torchvision's documented count, less its classifier 512 × 1000 + 1000
        ("cifar", 11_173_962 - 5_130),  # kuangliu's CIFAR-10 ResNet-18, less its classifier 512 × 10 + 10
        ("imagenet3", 11_173_962 - 5_130),  # a pool has no parameters
    ],
)
def test_resnet18_has_the_published_number_of_parameters(stem: str, expected: int) -> None:
    assert count(build("resnet18", image_shape=(3, 32, 32), stem=stem)) == expected


@pytest.mark.any_cpu
@pytest.mark.parametrize(
    ("shortcut", "expected"),
    [
        ("A", 464_154 - 650),  # akamaster's CIFAR-10 ResNet-32 ("0.46 M"), less its classifier 64 × 10 + 10
        ("B", 464_154 - 650 + 16 * 32 + 64 + 32 * 64 + 128),  # two projections with their batch norms
    ],
)
def test_resnet32_has_the_published_number_of_parameters(shortcut: str, expected: int) -> None:
    assert count(build("resnet32", image_shape=(3, 32, 32), shortcut=shortcut)) == expected


@pytest.mark.any_cpu
@pytest.mark.parametrize(("width", "dim"), [(1.0, 512), (0.5, 256), (0.25, 128), (2.0, 1024), (1 / 64, 8)])
def test_the_width_factor_scales_the_features(width: float, dim: int) -> None:
    assert build("resnet18", image_shape=(3, 32, 32), width=width).dim == dim


def test_a_quarter_of_the_width_has_about_a_sixteenth_of_the_parameters() -> None:
    full, quarter = (count(build("resnet18", image_shape=(3, 32, 32), width=width)) for width in (1.0, 0.25))
    assert 15 < full / quarter < 16


def plain_resnet(state: dict[str, Tensor], images: Tensor, stem: str, stages: int, blocks: int, padded: bool) -> Tensor:
    """Compute He et al. 2016 from a state dict with torchvision's names, in evaluation mode."""

    def conv(x: Tensor, name: str, stride: int) -> Tensor:
        weight = state[f"{name}.weight"]
        return functional.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)

    def norm(x: Tensor, name: str) -> Tensor:
        mean, var, scale, shift = (
            state[f"{name}.{part}"].view(1, -1, 1, 1) for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (var + 1e-5).sqrt() * scale + shift

    x = norm(conv(images, "conv1", 2 if stem == "imagenet" else 1), "bn1").clamp(min=0)
    if stem != "cifar":
        x = functional.max_pool2d(x, 3, 2, 1)
    for stage in range(1, stages + 1):
        for block in range(blocks):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            out = norm(conv(x, f"{name}.conv1", stride), f"{name}.bn1").clamp(min=0)
            out = norm(conv(out, f"{name}.conv2", 1), f"{name}.bn2")
            if stride == 2 and padded:
                x = x[:, :, ::2, ::2]
                x = torch.cat([x, torch.zeros_like(x)], 1)  # PyCIL's DownsampleA
            elif stride == 2:
                x = norm(conv(x, f"{name}.downsample.0", 2), f"{name}.downsample.1")
            x = (out + x).clamp(min=0)
    return x.flatten(2).mean(2)


@pytest.mark.parametrize(
    ("name", "options", "stages", "blocks"),
    [
        ("resnet18", {"stem": "cifar", "width": 0.5}, 4, 2),
        ("resnet18", {"stem": "imagenet", "width": 0.5}, 4, 2),
        ("resnet18", {"stem": "imagenet3", "width": 0.5}, 4, 2),
        ("resnet32", {"shortcut": "A"}, 3, 5),
        ("resnet32", {"shortcut": "B"}, 3, 5),
    ],
)
@pytest.mark.parametrize("size", [32, 45])
def test_the_network_computes_the_architecture_written_out_and_its_gradients(
    name: str, options: dict, stages: int, blocks: int, size: int
) -> None:
    """In the network, the stem pools before the rectifier: the same, at a quarter of the pixels."""
    torch.manual_seed(0)
    network = build(name, image_shape=(3, size, size), **options)
    network(torch.randn(8, 3, size, size))  # so that the running statistics are not 0 and 1
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias)
    network = network.double().eval()
    images = torch.randn(2, 3, size, size, dtype=torch.float64, requires_grad=True)
    padded = options.get("shortcut") == "A"
    expected = plain_resnet(network.state_dict(), images, options.get("stem", "cifar"), stages, blocks, padded)
    found, along = network(images), torch.randn(expected.shape, dtype=torch.float64)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad((features * along).sum(), images) for features in (found, expected)))


@pytest.mark.parametrize("name", ["resnet18", "resnet32"])
def test_the_parameters_have_torchvisions_names(name: str) -> None:
    keys = build(name, image_shape=(3, 32, 32)).state_dict().keys()
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "layer3.1.bn2.bias"} <= keys
    assert ("layer2.0.downsample.0.weight" in keys) == (name == "resnet18")
