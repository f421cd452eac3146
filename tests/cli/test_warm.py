"""The warm presets: a network trained on ImageNet that is not trained further, on features that are computed once."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from amgc.cli import presets
from amgc.cli.flags import parse
from amgc.cli.main import main
from amgc.features.lite import Lite, is_installed
from amgc.methods.registry import methods
from amgc.runs import find_runs

WARM = [name for name in presets.names() if name.startswith("warm-")]
FROZEN = [name for name, entry in methods().items() if not entry.hyper.later.epochs]
SMALL = {"ranpac": ["--projections", "64"], "acil": ["--expansion", "64"], "ds-al": ["--expansion", "64"]}


@pytest.mark.parametrize("name", WARM)
@pytest.mark.parametrize("method", FROZEN)
def test_no_frozen_method_trains_anything_on_a_warm_preset(name: str, method: str) -> None:
    (config,) = parse([name, "--method", method]).configs.values()
    assert (config.hyper.first.epochs, config.hyper.later.epochs) == (0, 0)
    assert config.features == "lite0" and config.machine.feature_cache


def test_warm_presets_say_that_they_are_no_cold_start() -> None:
    assert WARM == ["warm-cifar100-t10", "warm-cifar100-t20"]
    for name in WARM:
        assert "warm start" in presets.named(name).about
        assert not presets.named(name).paper, "the paper's figures are of a cold start"


@pytest.mark.slow
def test_all_frozen_methods_compare_on_features_that_are_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, random_photos: Path
) -> None:
    if not is_installed():
        pytest.skip("the weights of lite0 are not installed")
    monkeypatch.chdir(tmp_path)
    preset = (presets.FOLDER / "warm-cifar100-t10.toml").read_text().replace("resize = 192", "resize = 32")
    (tmp_path / "small.toml").write_text(preset.replace("tasks = 10", "tasks = 2"))
    seen, forward = [], Lite.forward
    monkeypatch.setattr(Lite, "forward", lambda self, images: seen.append(len(images)) or forward(self, images))
    for method in FROZEN:
        arguments = ["run", "small.toml", "--data", f"folder:{random_photos}", "--data.size", "32", "--method", method]
        assert main([*arguments, *SMALL.get(method, []), "--out", f"runs/{method}", "--quiet"]) == 0
    assert sum(seen) == 4 * 8, "each image once, for all methods"
    assert {run.method for run in find_runs(Path("runs"))} == set(FROZEN)


@pytest.fixture
def random_photos(tmp_path: Path) -> Path:
    for kind in range(4):
        (tmp_path / "photos" / str(kind)).mkdir(parents=True)
        for number in range(8):
            noise = Image.effect_noise((32, 32), 20 + 20 * kind)
            noise.save(tmp_path / "photos" / str(kind) / f"{number}.png")
    return tmp_path / "photos"
