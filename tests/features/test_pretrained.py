"""timm's models, if timm can be imported, and the error if not."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from amgc.features.extractor import freeze_batchnorm
from amgc.features.registry import build
from amgc.features.weights import PLAIN, load_extractor, save_extractor


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "timm"]:
        monkeypatch.delitem(sys.modules, name)


def test_without_timm_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r"pip install 'amgc\[timm\]'"):
        build("timm:resnet18", image_shape=(3, 32, 32))


@pytest.mark.parametrize(
    "code",
    ["raise RuntimeError('operator torchvision::nms does not exist')", "import torchvision_that_is_not_there"],
    ids=["other build", "missing"],
)
def test_without_a_matching_torchvision_the_message_says_so(code: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget(monkeypatch)
    (tmp_path / "timm.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=r"timm is installed, but .* torchvision.*Install the matching build"):
        build("timm:resnet18", image_shape=(3, 32, 32))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", ["resnet18", "mobilenetv3_small_050", "convnext_atto"])
def test_a_model_of_timm_gives_vectors(timm: ModuleType, name: str, channels: int) -> None:
    network = build(f"timm:{name}", image_shape=(channels, 64, 64), pretrained=False)
    assert network(torch.randn(2, channels, 64, 64)).shape == (2, network.dim)
    assert network.training and network.mean is network.std is None, "random weights expect no normalisation"


IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture
def published(timm: ModuleType, tmp_path: Path) -> str:
    """Write the weights of a colour model to a file, as if downloaded."""
    torch.manual_seed(0)
    torch.save(timm.create_model("resnet18", num_classes=5).state_dict(), tmp_path / "published.pth")
    return str(tmp_path / "published.pth")


def test_published_weights_come_with_their_normalisation(published: str, tmp_path: Path) -> None:
    network = build("timm:resnet18", image_shape=(3, 32, 32), weights=published)
    assert (network.mean, network.std) == IMAGENET
    save_extractor(tmp_path / "net.safetensors", network)
    loaded = load_extractor(tmp_path / "net.safetensors")
    assert (loaded.mean, loaded.std) == IMAGENET


def test_grey_images_are_repeated_for_published_weights(published: str, tmp_path: Path) -> None:
    network = build("timm:resnet18", image_shape=(1, 32, 32), weights=published).eval()
    grey = torch.randn(2, 1, 32, 32)
    assert torch.equal(network(grey), network(grey.repeat(1, 3, 1, 1)))
    assert (network.mean, network.std) == IMAGENET and network.image_shape == (1, 32, 32)
    save_extractor(tmp_path / "net.safetensors", network)
    assert torch.equal(load_extractor(tmp_path / "net.safetensors").eval()(grey), network(grey))


def test_images_of_other_channels_are_refused_for_published_weights(published: str) -> None:
    with pytest.raises(ValueError, match=r"trained on images with 3 channels, but these have 4.*pretrained=False"):
        build("timm:resnet18", image_shape=(4, 32, 32), weights=published)
    assert build("timm:resnet18", image_shape=(4, 32, 32), pretrained=False).dim == 512


def test_the_users_own_grey_network_is_restored_with_the_normalisation_of_the_data(timm: ModuleType, tmp_path: Path) -> None:
    network = build("timm:resnet18", image_shape=(1, 32, 32), pretrained=False).eval()
    save_extractor(tmp_path / "net.safetensors", network)
    loaded = load_extractor(tmp_path / "net.safetensors").eval()
    assert loaded.mean is loaded.std is None
    grey = torch.randn(2, 1, 32, 32)
    assert torch.equal(loaded(grey), network(grey))


def test_timms_resnet18_and_ours_compute_the_same_from_the_same_weights(timm: ModuleType, tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = timm.create_model("resnet18", num_classes=1000)
    theirs(torch.randn(4, 3, 64, 64))
    torch.save(theirs.state_dict(), tmp_path / "resnet18.pth")  # with its classifier
    weights, images = str(tmp_path / "resnet18.pth"), torch.randn(2, 3, 96, 96)
    ours = build("resnet18", image_shape=(3, 96, 96), stem="imagenet", weights=weights).eval()
    wrapped = build("timm:resnet18", image_shape=(3, 96, 96), weights=weights).eval()
    expected = theirs.eval().forward_head(theirs.forward_features(images), pre_logits=True)
    torch.testing.assert_close(ours(images), expected)
    torch.testing.assert_close(wrapped(images), expected)


def test_torchvisions_resnet18_and_ours_compute_the_same_from_the_same_weights(timm: ModuleType) -> None:
    torchvision = pytest.importorskip("torchvision.models", exc_type=ImportError)
    theirs = torchvision.resnet18()
    theirs(torch.randn(4, 3, 64, 64))
    state = {key: value for key, value in theirs.state_dict().items() if not key.startswith("fc.")}
    ours = build("resnet18", image_shape=(3, 96, 96), stem="imagenet").eval()
    ours.load_state_dict(state)
    theirs.fc = torch.nn.Identity()
    images = torch.randn(2, 3, 96, 96)
    torch.testing.assert_close(ours(images), theirs.eval()(images))


def test_a_classifier_is_told_apart_from_a_final_norm(timm: ModuleType, tmp_path: Path) -> None:
    theirs = timm.create_model("convnext_atto", num_classes=7)  # head.norm belongs to the features, head.fc does not
    torch.save(theirs.state_dict(), tmp_path / "net.pth")
    network = build("timm:convnext_atto", image_shape=(3, 64, 64), weights=str(tmp_path / "net.pth"))
    assert torch.equal(network.network.state_dict()["head.norm.weight"], theirs.state_dict()["head.norm.weight"])
    with pytest.raises(ValueError, match="do not fit timm"):
        build("timm:convnext_femto", image_shape=(3, 64, 64), weights=str(tmp_path / "net.pth"))


def test_a_model_of_one_image_size_says_which_and_resize_makes_images_fit(timm: ModuleType) -> None:
    with pytest.raises(ValueError, match="set resize=224"):
        build("timm:vit_tiny_patch16_224", image_shape=(3, 32, 32), pretrained=False)
    network = build("timm:vit_tiny_patch16_224", image_shape=(3, 32, 32), pretrained=False, resize=224)
    assert network.eval()(torch.randn(2, 3, 32, 32)).shape == (2, 192)


def test_a_saved_model_of_timm_comes_back_without_a_download(timm: ModuleType, tmp_path: Path) -> None:
    network = build("timm:resnet18", image_shape=(3, 32, 32), pretrained=False)
    save_extractor(tmp_path / "net.safetensors", network)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(load_extractor(tmp_path / "net.safetensors").eval()(images), network.eval()(images))


def test_every_name_of_timm_may_stand_in_a_file(timm: ModuleType) -> None:
    assert [name for name in timm.list_models(pretrained=True) if not PLAIN.fullmatch(name)] == []


def test_a_place_to_get_a_model_from_may_be_named_by_the_user(timm: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    create = timm.create_model

    def local(model: str, **options: object) -> object:
        asked.append(model)
        return create("resnet18", **options)

    monkeypatch.setattr(timm, "create_model", local)
    build("timm:hf-hub:owner/model", image_shape=(3, 32, 32), pretrained=False)
    assert asked == ["hf-hub:owner/model"]


def test_batch_norm_with_activation_can_be_fixed(timm: ModuleType) -> None:
    network = build("timm:mobilenetv3_small_050", image_shape=(3, 64, 64), pretrained=False)
    assert freeze_batchnorm(network) > 10
    before = {key: value.clone() for key, value in network.state_dict().items()}
    network.train()(torch.randn(2, 3, 64, 64))
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())


def test_an_unknown_or_missing_model_name_is_answered_with_near_ones(timm: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"no model 'resnet1'; it has .*resnet18"):
        build("timm:resnet1", image_shape=(3, 32, 32))
    with pytest.raises(ValueError, match="specify a model of timm"):
        build("timm", image_shape=(3, 32, 32))


def test_missing_weights_are_an_error_with_two_remedies(timm: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(OSError, match=r"no network.*weights=FILE.*pretrained=False"):
        build("timm:resnet18", image_shape=(3, 32, 32))
