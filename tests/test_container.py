"""The Dockerfile and the compose file. There is no engine to build them in tests, so their settings are checked."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import tyro

from amgc.cli.serve import serve

ROOT = Path(__file__).parents[1]


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, with continued lines joined and comments left out."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split()[0], line.partition(" ")[2]) for line in joined.splitlines() if line.strip()]


def test_the_image_is_slim_and_its_user_is_not_root():
    found = instructions()
    assert all("slim" in rest for name, rest in found if name == "FROM")
    last = max(place for place, (name, _) in enumerate(found) if name == "FROM")
    (user,) = [rest for name, rest in found[last:] if name == "USER"]
    assert user not in ("root", "0")
    for name, rest in found:
        if name == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()


def arguments(more: list[str]) -> list[str]:
    (entry,) = [rest for name, rest in instructions() if name == "ENTRYPOINT"]
    words = [word.strip('", ') for word in shlex.split(entry.strip("[]").replace(",", " "))]
    assert words[:2] == ["amgc", "serve"]
    return [*words[2:], *more]


@pytest.mark.parametrize("more", [[], ["--workers", "2"]])
def test_the_commands_of_the_containers_are_valid(more, monkeypatch):
    called = {}
    monkeypatch.setattr("amgc.cli.serve.open_or_create", lambda *_: called.setdefault("stop", 1 / 0))
    with pytest.raises(ZeroDivisionError):  # the flags were read, and the model would be opened
        tyro.cli(serve, args=arguments(more))


def test_the_compose_file_has_a_read_only_root_and_the_model_as_a_volume():
    yaml = pytest.importorskip("yaml")
    content = yaml.safe_load((ROOT / "compose.yaml").read_text())
    assert set(content["services"]) == {"teach", "answer"} and "model" in content["volumes"]
    for name, service in content["services"].items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["tmpfs"] == ["/tmp"]
        assert service["volumes"] == [f"model:/model{':ro' if name == 'answer' else ''}"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert arguments(content["services"]["answer"]["command"])[-2:] == ["--workers", "2"]
