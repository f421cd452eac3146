"""The presets `fast-*` and `best-*`: patches, or layers, and the closed form, on images of any size and kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli.helpers import figures
from PIL import Image

from amgc.cli import presets
from amgc.cli.flags import parse
from amgc.cli.main import main
from amgc.methods.registry import find, methods

FAST = [name for name in presets.names() if name.startswith("fast-")]
BEST = [name for name in presets.names() if name.startswith("best-")]


def hyper(*arguments: str) -> dict[str, object]:
    (config,) = parse(arguments).configs.values()
    return vars(config.hyper) | {"epochs": (config.hyper.first.epochs, config.hyper.later.epochs)}


@pytest.mark.parametrize("name", FAST + BEST)
def test_a_fast_preset_is_the_closed_form_and_trains_no_classifier(name: str) -> None:
    assert presets.named(name).methods == ("amgc-closed",)
    found = hyper(name, "--data", "folder:photos") if name.endswith("folder") else hyper(name)
    assert (found["ridge"], found["epochs"]) == (None, (0, 0))


def test_neither_features_nor_the_command_line_change_a_method() -> None:
    assert hyper("cifar100") == hyper("cifar100", "--features", "resnet18") == hyper("cifar100", "--features", "patches")
    assert hyper("fast-cifar100-t10") == hyper("fast-cifar100-t10", "--features", "resnet18")


def test_a_flag_overrides_the_preset() -> None:
    found = hyper("fast-cifar100-t10", "--first.epochs", "3", "--ridge", "0.1")
    assert (found["ridge"], found["epochs"]) == (0.1, (3, 0))


@pytest.mark.parametrize("name", FAST + BEST)
@pytest.mark.parametrize("method", ["amgc-exact", "lda", "ncm", "fecam", "acil", "ds-al", "ranpac"])
def test_methods_of_a_frozen_network_train_nothing(method: str, name: str) -> None:
    data = ["--data", "folder:photos"] if name.endswith("folder") else []
    assert hyper(name, "--method", method, *data)["epochs"] == (0, 0)


def test_the_list_of_methods_that_train_nothing_is_complete() -> None:
    """These are the methods with a frozen network, except FeTrIL, which trains a classifier."""
    frozen = {name for name, entry in methods().items() if not entry.hyper.later.epochs}
    assert all(set(presets.named(name).only) == frozen for name in FAST + BEST)


@pytest.mark.parametrize("method", ["finetune", "fetril"])
def test_methods_that_train_a_head_keep_their_epochs(method: str) -> None:
    own = find(method).hyper
    epochs = own.first.epochs, own.later.epochs
    assert hyper("fast-cifar100-t10", "--method", method)["epochs"] == epochs != (0, 0)


def test_patch_sizes_are_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    (config,) = parse(["cifar100", "--features", "patches", "--features.sizes", "5", "7"]).configs.values()
    assert config.features_options == {"sizes": (5, 7)}
    assert type(config).from_json(config.to_json() | {"features_options": {"sizes": [5, 7]}}).features_options["sizes"]
    (config,) = parse(["cifar100", "--features", "patches"]).configs.values()
    assert config.features_options == {}
    with pytest.raises(SystemExit):
        parse(["cifar100", "--features", "patches", "--help"])
    assert "--features.sizes" in capsys.readouterr().out


@pytest.mark.parametrize("name", FAST + BEST)
def test_a_fast_preset_has_the_papers_figures_where_the_paper_has_them(name: str) -> None:
    fast, rival = presets.named(name), f"paper-{name[5:]}"
    assert fast.features == ("patches" if name in FAST else "layers")
    paper = presets.named(rival).paper if rival in presets.names() else {}
    assert fast.paper == ({"amgc-closed": paper["amgc"]} if paper else {})


def accuracy(folder: Path) -> float:
    correct, total = figures(folder)[-1]
    return sum(correct) / sum(total)


@pytest.mark.slow  # the next test has fewer images
def test_digits_with_the_defaults(tmp_path: Path) -> None:
    assert main(["run", "fast-digits", "--out", str(tmp_path), "--quiet"]) == 0
    assert accuracy(tmp_path) > 0.95


def stripes(label: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return an image (size, size) of noise and stripes in the direction of the class, at a random position."""
    y, x = np.mgrid[:size, :size]
    wave = np.sin(0.9 * (np.cos(label * 0.8) * x + np.sin(label * 0.8) * y) + rng.uniform(0, 6))
    return np.clip(128 + 60 * wave + rng.normal(0, 15, (size, size)), 0, 255).astype(np.uint8)


def test_grey_images_of_28_pixels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    splits = {"train": np.repeat(np.arange(4), 12), "test": np.repeat(np.arange(4), 5)}
    arrays = {f"{split}_x": np.stack([stripes(label, 28, rng) for label in labels]) for split, labels in splits.items()}
    np.savez(tmp_path / "grey.npz", **arrays, **{f"{split}_y": labels for split, labels in splits.items()})
    arguments = ["--data", f"npz:{tmp_path / 'grey.npz'}", "--features.filters", "24", "--tasks", "2", "--quiet"]
    assert main(["run", "fast-folder", *arguments, "--out", str(tmp_path / "run")]) == 0
    assert accuracy(tmp_path / "run") > 0.9


@pytest.mark.parametrize(
    ("name", "options"), [("fast-folder", []), ("best-folder", ["--features.steps", "5", "--features.widths", "8", "16"])]
)
def test_a_folder_of_photos_of_mixed_sizes(name: str, options: list[str], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for label, animal in enumerate(("cat", "dog", "owl")):
        (tmp_path / "photos" / animal).mkdir(parents=True)
        for number in range(20):
            tint = rng.uniform(0.6, 1, 3)
            pixels = (stripes(label, 70 + number, rng)[:, : 66 + number // 2, None] * tint).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / animal / f"{number}.png")
    arguments = ["--data", f"folder:{tmp_path / 'photos'}", "--tasks", "3", "--features.filters", "24", "--quiet", *options]
    assert main(["run", name, *arguments, "--data.cache", "False", "--out", str(tmp_path / "run")]) == 0
    assert accuracy(tmp_path / "run") > 0.9
