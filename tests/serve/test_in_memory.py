"""Lessons of few pictures are answered with at once, and written together or when the server stops."""

from __future__ import annotations

import logging
import signal

import pytest
from serving import BASE, parts, png, server, taught

pytest.importorskip("fastapi", reason="needs the extra `serve`")
from fastapi.testclient import TestClient

from amgc.model import Model
from amgc.serve.app import create_app
from amgc.serve.guard import Settings

DOWNLOAD = "/api/model.zip"


@pytest.fixture
def model(tmp_path) -> Model:
    return taught(tmp_path / "model")


@pytest.fixture
def client(model):
    with TestClient(create_app(model, Settings(hold=5)), BASE) as client:
        yield client


def teach(client, kind: str, *seeds: int) -> dict[str, object]:
    answer = client.post("/api/learn", files=parts(*(png(kind, seed) for seed in seeds)), data={"label": kind})
    assert answer.status_code == 200, answer.text
    return answer.json()


def in_memory(client) -> dict[str, int]:
    return {one["label"]: one["in_memory"] for one in client.get("/api/classes").json()["classes"] if one["in_memory"]}


def test_few_pictures_are_answered_with_at_once_and_written_with_later_ones(client, model):
    before = Model.open(model.path).classes
    manifest = (model.path / "manifest.json").read_bytes()
    assert teach(client, "brick", 0)["in_memory"] == 1 and teach(client, "brick", 1, 2)["in_memory"] == 3
    about = client.get("/api/classes").json()
    assert about["hold"] == 5 and in_memory(client) == {"brick": 3}
    assert {"label": "brick", "pictures": 3, "in_memory": 3} in about["classes"]
    found = client.post("/api/predict", files=parts(png("brick", 9))).json()
    assert found["answers"][0]["answer"] == "brick"
    assert (model.path / "manifest.json").read_bytes() == manifest and Model.open(model.path).classes == before
    assert Model.unpacked(client.get(DOWNLOAD).content, model.path.with_name("saved")).classes == before
    assert teach(client, "brick", 3, 4)["in_memory"] == 0 and not in_memory(client)
    assert Model.open(model.path).classes == before | {"brick": 5}


def test_a_lesson_in_memory_is_undone_and_a_written_one_returns_what_was_in_memory(client, model):
    known = Model.open(model.path).classes
    teach(client, "brick", 0, 1, 2)
    teach(client, "brick", 3)
    generation = model.info().generation
    assert client.post("/api/undo").json()["undone"] == "learning “brick”"
    assert in_memory(client) == {"brick": 3} and model.info().generation == generation
    teach(client, "brick", 3, 4)
    assert Model.open(model.path).classes == known | {"brick": 5}
    client.post("/api/undo")
    assert in_memory(client) == {"brick": 3} and Model.open(model.path).classes == known
    assert not Model.open(model.path).info().can_undo
    assert client.post("/api/forget", json={"label": "brick"}).status_code == 200
    assert not in_memory(client) and Model.open(model.path).classes == known


@pytest.mark.parametrize("fails", [False, True])
def test_a_server_that_stops_writes_what_is_in_memory_and_says_so(model, caplog, monkeypatch, fails):
    known = dict(model.classes)
    with caplog.at_level(logging.WARNING, "amgc.serve"), TestClient(create_app(model, Settings(hold=5)), BASE) as client:
        teach(client, "brick", 0, 1)
        if fails:
            monkeypatch.setattr("amgc.model.folder.files.write_json", _full)
    (said,) = [record.getMessage() for record in caplog.records]
    if fails:
        assert said.startswith("lost, because") and "2 of 'brick'" in said and Model.open(model.path).classes == known
    else:
        assert said.startswith("written, because the server stops") and "2 of 'brick'" in said
        assert Model.open(model.path).classes == known | {"brick": 2}


def _full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_private_model_spends_its_budget_once_and_holds_nothing(tmp_path):
    from amgc.core.privacy import Privacy

    model = Model.create(tmp_path / "private", "convnet", size=16, dim=8, privacy=Privacy(8.0))
    with TestClient(create_app(model, Settings(hold=5)), BASE) as client:
        assert teach(client, "sea", 0, 1)["in_memory"] == 0
    assert "sea" in Model.open(model.path).classes


@pytest.mark.slow
@pytest.mark.parametrize("end", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_amgc_serve_holds_by_default_and_writes_when_it_is_stopped(model, tmp_path, end):
    import httpx2

    if signal.getsignal(getattr(signal, end)) == signal.SIG_IGN:
        pytest.skip("the tests run under nohup")
    known = dict(model.classes)
    with server(model.path, home=tmp_path, end=getattr(signal, end)) as served:
        with httpx2.Client(base_url=served.address) as client:
            assert teach(client, "brick", 0, 1, 2)["in_memory"] == 3
        assert Model.open(model.path).classes == known
    assert Model.open(model.path).classes == known | {"brick": 3}
