"""The wheel builds, has a valid description, and runs in a new environment."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with the installed hatchling, without network."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_twine_finds_nothing_wrong_with_the_wheel(wheel: Path) -> None:
    assert "PASSED" in run(sys.executable, "-m", "twine", "check", "--strict", wheel, cwd=wheel.parent)


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/amgc").rglob("*") if path.is_file()}
    sources = {name for name in sources if "__pycache__" not in name}
    assert sources <= names
    assert all(name.startswith(("amgc/", "amgc-")) for name in names)


@pytest.mark.slow
def test_the_wheel_runs_in_a_new_environment(wheel: Path, tmp_path: Path) -> None:
    """A .pth file provides the dependencies of this environment, because installing them would take minutes."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    scripts = tmp_path / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    (site,) = (tmp_path / "venv").rglob("site-packages")
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", site, wheel, cwd=tmp_path)
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    code = "import amgc, amgc.cli.main as m; print(amgc.__file__); print(m.main(['list', 'presets']))"
    done = subprocess.run([scripts / "python", "-I", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.split()
    assert Path(first).is_relative_to(site) and last == "0"
    assert "fast-cifar100-t10" in done.stdout
    shown = subprocess.run([scripts / "python", "-I", "-m", "amgc", "--help"], capture_output=True, text=True, cwd=tmp_path)
    assert shown.returncode == 0 and "usage: amgc COMMAND" in shown.stdout
