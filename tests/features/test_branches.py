"""Folding batch norm and merging branches change the structure, but not the outputs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amgc.features import build
from amgc.features.branches import (
    BranchedConv2d,
    add_branches,
    branched,
    fold_batchnorm,
    merge_branches,
    unfold_batchnorm,
    without_branches,
)
from amgc.features.extractor import Extractor, freeze_batchnorm

pytestmark = pytest.mark.cpus

NETWORKS: list[tuple[str, dict[str, Any], int, int]] = [  # batch norms, and 3×3 convolutions but the stem
    ("convnet", {"dim": 16}, 3, 2),
    ("resnet18", {"width": 0.125}, 20, 16),
    ("resnet18", {"width": 0.125, "stem": "imagenet"}, 20, 16),
    ("resnet32", {}, 31, 30),
    ("resnet32", {"shortcut": "B"}, 33, 30),
]


def noise(shape: torch.Size | tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def lived(network: Extractor) -> Extractor:
    """Set batch norms to other values than the initial ones, as after training."""
    for seed, layer in enumerate(network.modules()):
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.copy_(0.3 * noise(layer.running_mean.shape, seed))
            layer.running_var.copy_(noise(layer.running_var.shape, seed + 1).exp())
            layer.weight.data.copy_(1 + 0.3 * noise(layer.weight.shape, seed + 2))
            layer.bias.data.copy_(0.3 * noise(layer.bias.shape, seed + 3))
    return network.eval()


def assert_close(one: Tensor, other: Tensor) -> None:
    """Assert equality up to 1e-5 of the largest feature."""
    assert float((one - other).detach().abs().max()) < 1e-5 * float(other.detach().abs().max())


@pytest.mark.parametrize(("name", "options", "norms", "_"), NETWORKS)
@pytest.mark.parametrize("fixed", [False, True])
def test_a_folded_network_has_no_batch_norm_and_computes_the_same(
    name: str, options: dict[str, Any], norms: int, _: int, fixed: bool
) -> None:
    network, images = lived(build(name, image_shape=(3, 20, 20), **options)), noise((4, 3, 20, 20), 7)
    expected = network(images)
    if fixed:
        freeze_batchnorm(network)
    network.train()
    assert fold_batchnorm(network) == norms
    assert network.training and not any(isinstance(layer, nn.BatchNorm2d) for layer in network.modules())
    assert_close(network(images), expected)
    assert fold_batchnorm(network) == 0


@pytest.mark.parametrize(("name", "options"), [*(row[:2] for row in NETWORKS), ("odd", {})])
@pytest.mark.parametrize("copied", [False, True])
def test_an_unfolded_network_is_built_as_before_and_computes_what_the_folded_one_did(
    name: str, options: dict[str, Any], copied: bool
) -> None:
    network = lived(Odd() if name == "odd" else build(name, image_shape=(3, 20, 20), **options))
    images = noise((4, *network.image_shape), 7)
    built = {name: tensor.shape for name, tensor in network.state_dict().items()}
    fold_batchnorm(network)
    network = copy.deepcopy(network) if copied else network
    for seed, layer in enumerate(network.modules()):
        if isinstance(layer, nn.Conv2d):  # a folded network may be trained
            layer.weight.data += 0.1 * layer.weight.std() * noise(layer.weight.shape, seed)
    expected = network(images)
    unfold_batchnorm(network)
    assert {name: tensor.shape for name, tensor in network.state_dict().items()} == built
    assert_close(network.eval()(images), expected)


@pytest.mark.parametrize(("name", "options", "_", "convs"), NETWORKS)
def test_a_merged_network_computes_what_it_did_with_branches(name: str, options: dict[str, Any], _: int, convs: int) -> None:
    network, images = lived(build(name, image_shape=(3, 20, 20), **options)), noise((4, 3, 20, 20), 7)
    fold_batchnorm(network)
    before, names = network(images), list(network.state_dict())
    assert add_branches(network) == convs == len(branched(network)) and add_branches(network) == convs
    assert torch.equal(network(images), before), "a new branch is zero"
    for seed, conv in enumerate(branched(network)):
        conv.branch.data.copy_(0.2 * conv.weight.std() * noise(conv.branch.shape, seed))
    expected = network(images)
    assert float((expected - before).detach().abs().max()) > 0.01 * float(before.detach().abs().max())
    with without_branches(network):
        assert torch.equal(network(images), before)
    assert torch.equal(network(images), expected) and torch.equal(copy.deepcopy(network)(images), expected)
    merge_branches(network)
    assert list(network.state_dict()) == names and not branched(network)
    assert_close(network(images), expected)


@pytest.mark.parametrize("options", [{"stride": 2}, {"dilation": 2, "padding": 2}, {"groups": 4}, {"padding_mode": "reflect"}])
def test_branches_line_up_with_any_convolution_that_they_are_added_to(options: dict[str, Any]) -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, **({"padding": 1} | options)))
    assert add_branches(network) == 1 and isinstance(network[1], BranchedConv2d)
    network[1].branch.data.normal_()
    images = noise((2, 3, 11, 12), 1)
    expected = network(images)
    merge_branches(network)
    torch.testing.assert_close(network(images), expected, rtol=1e-5, atol=1e-5)


def test_convolutions_that_no_branch_lines_up_with_have_none() -> None:
    others = [nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 5, padding=2), nn.Conv2d(8, 8, 3, padding=(1, 0))]
    assert add_branches(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *others)) == 0


class Odd(Extractor):
    """Modules registered in another order than used, a batch norm first, one used twice, and a convolution with bias."""

    dim, image_shape = 4, (3, 6, 6)

    def __init__(self) -> None:
        super().__init__()
        self.second_norm, self.first_norm, self.twice = (nn.BatchNorm2d(4) for _ in range(3))
        self.input_norm = nn.BatchNorm2d(3)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.third, self.fourth = (nn.Conv2d(4, 4, 1, bias=False) for _ in range(2))

    def forward(self, images: Tensor) -> Tensor:
        maps = self.first_norm(self.first(self.input_norm(images)))
        maps = self.second_norm(self.second(torch.relu(maps)))
        maps = self.twice(self.third(maps))
        out: Tensor = self.twice(self.fourth(maps)).mean((2, 3))
        return out


def test_pairs_are_found_by_what_flows_where() -> None:
    network, images = lived(Odd()), noise((5, 3, 6, 6), 2)
    expected = network(images)
    assert fold_batchnorm(network) == 2
    left = {name for name, layer in network.named_modules() if isinstance(layer, nn.BatchNorm2d)}
    assert left == {"input_norm", "twice"}
    assert_close(network(images), expected)


class Activated(nn.BatchNorm2d):
    """A batch norm with an activation, as in timm."""

    def forward(self, maps: Tensor) -> Tensor:
        return torch.relu(super().forward(maps))


def test_a_batch_norm_that_does_more_stays() -> None:
    network, images = Odd(), noise((5, 3, 6, 6), 2)
    network.second_norm = Activated(4)
    expected = lived(network)(images)
    assert fold_batchnorm(network) == 1 and isinstance(network.second_norm, Activated)
    assert_close(network(images), expected)


def test_a_network_without_batch_norm_is_left_alone() -> None:
    """Not even its image shape is requested."""
    assert fold_batchnorm(nn.Identity()) == 0  # type: ignore[arg-type]
