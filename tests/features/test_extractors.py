"""Every registered extractor: shapes, gradients, seeds, memory formats, batch norm."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import torch
from torch import nn

from amgc.features.extractor import Extractor, evaluating, freeze_batchnorm
from amgc.features.registry import EXTRACTORS, Options, build, extractors, feature_extractor
from amgc.options import option

# Not those that start from no random weights: test_patches.py, test_layers.py and test_lite.py test them.
OURS = [name for name in extractors() if name not in ("timm", "patches", "layers", "lite0", "lite1", "lite2")]
VARIANTS = [
    ("convnet", {}, (8, 28, 32)),
    ("convnet", {"dim": 128}, (8, 32)),
    ("resnet18", {"stem": "cifar", "width": 0.25}, (8, 28, 32, 64)),
    ("resnet18", {"stem": "imagenet", "width": 0.25}, (28, 32, 64, 224)),
    ("resnet18", {"stem": "imagenet3", "width": 0.25}, (32, 64, 224)),
    ("resnet18", {}, (32,)),
    ("resnet32", {}, (8, 28, 32, 64)),
    ("resnet32", {"shortcut": "B"}, (28, 32)),
]
CASES = [(name, options, size) for name, options, sizes in VARIANTS for size in sizes]


def test_every_extractor_is_in_the_list_of_shapes() -> None:
    assert {name for name, _, _ in VARIANTS} == set(OURS)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("name", "options", "size"), CASES)
def test_images_become_vectors_of_length_dim(name: str, options: dict, size: int, channels: int) -> None:
    network = build(name, image_shape=(channels, size, size), **options).eval()
    with torch.no_grad():
        features = network(torch.randn(2, channels, size, size))
    assert features.shape == (2, network.dim)
    assert features.isfinite().all()


@pytest.mark.parametrize("name", OURS)
def test_images_need_not_be_square(name: str) -> None:
    network = build(name, image_shape=(3, 20, 33))
    assert network(torch.randn(2, 3, 20, 33)).shape == (2, network.dim)


@pytest.mark.parametrize("name", OURS)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    network = build(name, image_shape=(3, 32, 32))
    network(torch.randn(2, 3, 32, 32)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in network.parameters())


@pytest.mark.parametrize("name", OURS)
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(name: str) -> None:
    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(build(name, image_shape=(3, 32, 32)).parameters())

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


@pytest.mark.parametrize("name", OURS)
def test_channels_last_gives_the_same_features(name: str) -> None:
    network = build(name, image_shape=(3, 32, 32)).eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        plain = network(images)
        last = network.to(memory_format=torch.channels_last)(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(last, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OURS)
def test_convolutions_start_with_variance_two_over_fan_out(name: str) -> None:
    torch.manual_seed(0)
    layers = [layer for layer in build(name, image_shape=(3, 32, 32)).modules() if isinstance(layer, nn.Conv2d)]
    large = [layer for layer in layers if layer.weight.numel() > 5000]
    assert large
    for layer in large:
        fan_out = layer.out_channels * layer.kernel_size[0] * layer.kernel_size[1]
        assert layer.weight.var().item() == pytest.approx(2 / fan_out, rel=0.1)


def trained(network: nn.Module, steps: int = 2) -> nn.Module:
    torch.manual_seed(3)
    network.train()
    optimiser = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=0.1, weight_decay=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        network(5 + torch.randn(4, 3, 16, 16)).square().sum().backward()
        optimiser.step()
    return network


def batchnorm_state(network: nn.Module) -> dict[str, torch.Tensor]:
    layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, nn.BatchNorm2d)}
    return {f"{n}.{k}": v.clone() for n, layer in layers.items() for k, v in layer.state_dict().items()}


@pytest.mark.parametrize("name", OURS)
def test_a_fixed_batch_norm_does_not_change_while_the_rest_trains(name: str) -> None:
    network = build(name, image_shape=(3, 16, 16))
    count = freeze_batchnorm(network)
    before, weight = batchnorm_state(network), next(network.parameters()).clone()
    after = batchnorm_state(trained(network))
    assert count == len(before) // 5 > 0
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert not torch.equal(weight, next(network.parameters()))


def test_a_batch_norm_that_is_not_fixed_does_change() -> None:
    network = build("convnet", image_shape=(3, 16, 16))
    before = batchnorm_state(network)
    after = batchnorm_state(trained(network))
    assert not any(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("name", OURS)
def test_with_batch_norm_fixed_and_nothing_learned_training_mode_gives_the_features_of_evaluation(name: str) -> None:
    network = trained(build(name, image_shape=(3, 16, 16)))
    images = torch.randn(4, 3, 16, 16)
    freeze_batchnorm(network)
    with torch.no_grad():
        evaluated = network.eval()(images)
        for _ in range(3):
            torch.testing.assert_close(network.train()(images), evaluated, rtol=0, atol=0)


def test_fixing_twice_or_copying_keeps_batch_norm_fixed_and_the_names_of_the_state_dict() -> None:
    network = build("resnet32", image_shape=(3, 16, 16))
    keys = list(network.state_dict())
    assert freeze_batchnorm(network) == freeze_batchnorm(network) == 31
    copied = copy.deepcopy(network).train()
    assert list(copied.state_dict()) == keys
    assert not any(layer.training for layer in copied.modules() if isinstance(layer, nn.BatchNorm2d))
    before = batchnorm_state(copied)
    assert all(torch.equal(before[key], value) for key, value in batchnorm_state(trained(copied)).items())


class Shifted(nn.BatchNorm2d):
    """A batch norm with its own forward method, as in timm."""

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        return super().forward(maps) + 1


COPIES = {
    "deepcopy": copy.deepcopy,
    **{f"pickle {protocol}": lambda x, p=protocol: pickle.loads(pickle.dumps(x, p)) for protocol in (2, 4, 5)},
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, Shifted])
def test_a_fixed_batch_norm_survives_copies_and_pickles(kind: type[nn.Module], way: str) -> None:
    shape = {nn.BatchNorm1d: (4, 3), nn.BatchNorm3d: (4, 3, 2, 2, 2)}.get(kind, (4, 3, 2, 2))
    network = nn.Sequential(kind(3))
    network[0].running_mean.normal_()
    freeze_batchnorm(network)
    copied = COPIES[way](network).train()
    assert isinstance(copied[0], kind) and type(copied[0]) is type(network[0])
    assert not copied[0].training and not any(p.requires_grad for p in copied.parameters())
    x = torch.randn(shape)
    assert torch.equal(copied(x), network.eval()(x))
    copied[0].running_mean.zero_()
    assert network[0].running_mean.any(), "the copy is one"
    assert freeze_batchnorm(copied) == 1 and type(copied[0]) is type(network[0])


def test_another_process_can_read_a_pickled_network_with_fixed_batch_norms(tmp_path: Path) -> None:
    network = build("convnet", image_shape=(1, 8, 8))
    freeze_batchnorm(network)
    (tmp_path / "net.pkl").write_bytes(pickle.dumps(network))
    code = "import pickle, sys; net = pickle.load(open(sys.argv[1], 'rb')).train(); print(net.layers[1].training)"
    result = subprocess.run([sys.executable, "-c", code, tmp_path / "net.pkl"], capture_output=True, check=False)
    assert result.stdout.split() == [b"False"], result.stderr.decode()


def test_evaluating_puts_every_layer_back_into_its_own_mode() -> None:
    network = build("resnet32", image_shape=(3, 16, 16)).train()
    network.get_submodule("layer2").eval()
    before = [layer.training for layer in network.modules()]
    with pytest.raises(KeyError), evaluating(network):
        assert torch.is_inference_mode_enabled() and not any(layer.training for layer in network.modules())
        raise KeyError
    assert [layer.training for layer in network.modules()] == before
    assert not torch.is_inference_mode_enabled()


def test_names_and_options_are_read_without_importing_torch() -> None:
    code = "import sys; from amgc.features import extractors; extractors()"
    result = subprocess.run([sys.executable, "-c", f"{code}; print('torch' in sys.modules)"], capture_output=True)
    assert result.stdout.split() == [b"False"], result.stderr.decode()


@pytest.mark.parametrize("name", list(extractors()))
def test_every_option_has_a_help_text_and_every_extractor_accepts_weights(name: str) -> None:
    options = {field.name: field for field in fields(extractors()[name].options)}
    assert "weights" in options
    assert all(field.metadata["help"] for field in options.values())


def test_a_new_extractor_is_a_dataclass_and_a_decorator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EXTRACTORS, "entries", dict(extractors()))  # so that it is forgotten after this test

    @dataclass(frozen=True)
    class MineOptions(Options):
        dim: int = option(5, "number of features")

    @feature_extractor("mine", MineOptions())
    class Mine(Extractor):
        def __init__(self, image_shape: tuple[int, int, int], options: MineOptions) -> None:
            super().__init__()
            self.dim = options.dim

    made = build("mine", image_shape=(1, 2, 2), dim=7)
    assert (made.name, made.dim, made.options) == ("mine", 7, MineOptions(dim=7))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet81", {}, "did you mean 'resnet18'"),
        ("resnet18:big", {}, "no extractor 'resnet18:big'"),
        ("resnet18", {"stem": "cifar10"}, "stem must be one of cifar, imagenet, imagenet3; not 'cifar10'"),
        ("resnet18", {"width": 0.0}, "width must be from 0.015625 to 64"),
        ("resnet18", {"width": float("nan")}, "width must be from 0.015625 to 64"),
        ("resnet32", {"shortcut": "C"}, "shortcut must be one of A, B"),
        ("convnet", {"dim": 10}, "multiple of 4"),
        ("convnet", {"image_shape": (1, 3, 8)}, "at least 4 × 4 pixels, not 3 × 8"),
        ("convnet", {"image_shape": (8, 8)}, "must be \\(channels, height, width\\)"),
        ("convnet", {"image_shape": (0, 8, 8)}, "each at least 1"),
        ("timm", {"resize": -1}, "resize must be finite and not negative"),
    ],
)
def test_a_wrong_name_or_option_is_named_in_the_error(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, **{"image_shape": (3, 32, 32), **options})


def test_an_unknown_option_is_answered_with_the_known_ones() -> None:
    with pytest.raises(TypeError, match="resnet18 has no option 'blocks'; its options are weights, stem, width"):
        build("resnet18", image_shape=(3, 32, 32), blocks=4)
    with pytest.raises(TypeError, match=r"no option 'widht'; did you mean 'width'\?"):
        build("resnet18", image_shape=(3, 32, 32), widht=0.5)
