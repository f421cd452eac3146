"""Batches of concurrent requests, the limit of waiting images, metrics, health, and read-only replicas."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from serving import BASE, parts, png, server, taught

pytest.importorskip("fastapi", reason="needs the extra `serve`")
import httpx2
from fastapi.testclient import TestClient

from amgc.model import ImageError, Model
from amgc.serve import batching, metrics
from amgc.serve.app import create_app
from amgc.serve.batching import Batcher
from amgc.serve.errors import ApiError
from amgc.serve.guard import Settings
from amgc.serve.metrics import NAMES, Metrics
from amgc.serve.uploads import Upload
from amgc.serve.work import Workers


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    return taught(tmp_path_factory.mktemp("load") / "model")


def given(*seeds: int) -> list[Upload]:
    return [Upload(f"{seed}.png", png("sea" if seed % 2 else "grass", seed)) for seed in seeds]


def test_concurrent_requests_share_batches_and_get_their_own_answers(model, monkeypatch):
    """Different numbers of images, classes and thresholds, against requests that are answered alone."""
    monkeypatch.setattr(batching, "WAIT", 0.2)
    counted = Metrics()
    batcher = Batcher(model, Workers(2), counted)
    wanted = [(given(*range(first, first + 1 + first % 3)), 1 + first % 2, None if first % 2 else 0.5) for first in range(8)]
    futures = [batcher.submit(*one) for one in wanted]
    batcher.start()
    for (pictures, top, reject), future in zip(wanted, futures, strict=True):
        alone = model.predict(list(pictures), top, reject)
        found = future.result(timeout=60)
        assert [one.source for one in found] == [one.name for one in pictures]
        assert [(one.labels, one.rejected) for one in found] == [(one.labels, one.rejected) for one in alone]
        for one, other in zip(found, alone, strict=True):
            assert one.probabilities == pytest.approx(other.probabilities, abs=1e-4)
    assert counted.total("images") == sum(len(one[0]) for one in wanted) and counted.total("batches") < len(wanted)
    assert batcher.waiting == 0


def test_a_bad_image_fails_its_own_request_only(model):
    batcher = Batcher(model, Workers(1), Metrics())
    bad, good = batcher.submit([Upload("text.png", b"dear all")], 1, None), batcher.submit(given(1), 1, None)
    batcher.start()
    with pytest.raises(ImageError, match=r"text\.png"):
        bad.result(timeout=60)
    assert good.result(timeout=60)[0].label == "sea"


def test_beyond_the_limit_requests_are_refused_until_others_are_answered(model):
    batcher = Batcher(model, Workers(1), Metrics(), waiting=3)
    first = batcher.submit(given(1, 2), 1, None)  # the thread has not been started
    with pytest.raises(ApiError) as refused:
        batcher.submit(given(3, 4), 1, None)
    assert refused.value.status_code == 503 and refused.value.headers["Retry-After"] == "2"
    batcher.start()
    first.result(timeout=60)
    assert len(batcher.submit(given(3, 4), 1, None).result(timeout=60)) == 2
    assert batcher.metrics.total("refused") == 1


def test_requests_decode_their_images_in_turn(model, monkeypatch):
    """One thread: a small request that comes during the first image of a large request is decoded after that image."""
    read, begun, release = [], threading.Event(), threading.Event()
    decode = Upload.read

    def slow(picture, *given):
        read.append(picture.name)
        begun.set()
        assert release.wait(60)
        return decode(picture, *given)

    monkeypatch.setattr(Upload, "read", slow)
    batcher = Batcher(model, Workers(1), Metrics())
    batcher.start()
    large = batcher.submit(given(0, 2, 4, 6), 1, None)
    assert begun.wait(60)
    small = batcher.submit(given(1), 1, None)
    release.set()
    assert small.result(timeout=60)[0].label == "sea" and len(large.result(timeout=60)) == 4
    assert read == ["0.png", "1.png", "2.png", "4.png", "6.png"]


def test_a_small_image_is_answered_while_large_ones_are_decoded(model, monkeypatch):
    release, decode = threading.Event(), Upload.read

    def slow(picture, *given):
        if picture.pixels:
            assert release.wait(60)
        return decode(picture, *given)

    monkeypatch.setattr(Upload, "read", slow)
    batcher = Batcher(model, Workers(1), Metrics())
    batcher.start()
    large = [batcher.submit([Upload("large.png", png("grass", 0), pixels=batching.LARGE + 1)], 1, None) for _ in range(3)]
    assert batcher.submit(given(1), 1, None).result(timeout=60)[0].label == "sea"
    assert not any(one.done() for one in large)
    release.set()
    assert [one.result(timeout=60)[0].label for one in large] == ["grass"] * 3


def test_many_images_are_encoded_in_parts_in_turn_with_other_requests(model, monkeypatch):
    monkeypatch.setattr(batching, "BATCH", 4)
    done, batcher = [], Batcher(model, Workers(1), Metrics())
    waiting = {}
    for name, seeds in (("many", range(10)), ("one", [1])):
        waiting[name] = batcher.submit(given(*seeds), 1, None)
        waiting[name].add_done_callback(lambda _, name=name: done.append(name))
        while batcher._queue.qsize() < len(waiting):  # decoded in this order
            time.sleep(0.01)
    batcher.start()
    many, one = waiting.values()
    assert [found.label for found in many.result(timeout=60)] == ["grass", "sea"] * 5
    assert one.result(timeout=60)[0].label == "sea" and done == ["one", "many"]
    assert batcher.metrics.total("batches") == 3 and batcher.metrics.total("images") == 11


def test_a_batch_is_answered_with_one_state_of_the_model(tmp_path, monkeypatch):
    monkeypatch.setattr(batching, "WAIT", 0.2)
    model = taught(tmp_path / "model")
    counted = Metrics()
    batcher = Batcher(model, Workers(1), counted)
    before = batcher.submit(given(1), 5, None)
    while not batcher._queue.qsize():  # decoded with the state before
        time.sleep(0.01)
    model.learn([png("brick", seed) for seed in range(4)], "brick")
    after = batcher.submit(given(1), 5, None)
    batcher.start()
    assert [len(one.result(timeout=60)[0].labels) for one in (before, after)] == [3, 3]
    assert counted.total("batches") == 1


def test_the_server_has_metrics_and_says_whether_it_is_ready(model, caplog):
    app = create_app(model, log=True)
    with TestClient(app, base_url=BASE) as client:
        assert client.get("/healthz").text == "ok\n" and client.get("/readyz").text == "ready\n"
        assert client.post("/api/predict", files=parts(png("sea", 5))).status_code == 200
        with caplog.at_level(logging.INFO, "amgc.access"):
            assert client.post("/api/predict", files=parts(b"no")).status_code == 422
        text = client.get("/metrics").text
        app.state.updates.problem = "the folder is gone"
        assert client.get("/readyz").status_code == 503
    assert 'amgc_requests_total{path="/api/predict",status="2xx"} 1\n' in text
    assert 'amgc_requests_total{path="/api/predict",status="4xx"} 1\n' in text
    assert "amgc_images_total 1\n" in text and "amgc_classes 2\n" in text and "amgc_predict_seconds_count 2\n" in text
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names)) and all(line[0] == "#" or len(line.split()) == 2 for line in text.splitlines())
    (line,) = [json.loads(record.message) for record in caplog.records if record.name == "amgc.access"]
    assert (line["path"], line["status"], line["method"]) == ("/api/predict", 422, "POST") and line["ms"] > 0


def test_metrics_need_the_token(model):
    token = "0123456789abcdef"
    with TestClient(create_app(model, Settings(token)), base_url=BASE) as client:
        assert client.get("/metrics").status_code == 401
        assert client.get("/metrics", headers={"authorization": f"Bearer {token}"}).status_code == 200
        assert client.get("/healthz").status_code == 200


def test_processes_add_up_their_metrics():
    table = [0.0] * (2 * len(NAMES))
    one, two = Metrics(table, 0), Metrics(table, 1)
    one.add("images", 3)
    two.add("images", 4)
    two.observe("/api/predict", 200, 0.03)
    assert one.total("images") == 7 and 'le="0.05"} 1\n' in one.text({}) and 'le="0.025"} 0\n' in one.text({})


def test_a_read_only_server_answers_and_refuses_changes(model):
    with TestClient(create_app(model, read_only=True), base_url=BASE) as client:
        assert client.post("/api/predict", files=parts(png("sea", 5))).status_code == 200
        refused = client.post("/api/learn", files=parts(png("sea", 5)), data={"label": "sea"})
        assert refused.status_code == 403 and "only answers" in refused.json()["detail"]
        for path in ("forget", "rename", "undo", "open"):
            assert client.post(f"/api/{path}", json={"label": "sea"}).status_code == 403
        assert client.get("/api/classes").status_code == 200
    assert model.classes == {"grass": 12, "sea": 12}


def test_the_buckets_are_in_order():
    assert list(metrics.BUCKETS) == sorted(metrics.BUCKETS)


def test_a_refused_request_is_told_when_to_try_again(model):
    app = create_app(model)
    with TestClient(app, base_url=BASE) as client:
        app.state.batcher.waiting = batching.WAITING  # as if others' images waited
        refused = client.post("/api/predict", files=parts(png("sea", 5)))
        assert refused.status_code == 503 and refused.headers["retry-after"] == "2"
        assert "1024 pictures are waiting already" in refused.json()["detail"]
        assert "amgc_refused_total 1\n" in client.get("/metrics").text
        app.state.batcher.waiting = 0
        assert client.post("/api/predict", files=parts(png("sea", 5))).status_code == 200


def test_a_server_that_is_being_stopped_is_alive_and_not_ready(model):
    app = create_app(model)
    with TestClient(app, base_url=BASE) as client:
        app.state.updates.stop()
        assert (client.get("/readyz").status_code, client.get("/healthz").status_code) == (503, 200)


@pytest.mark.slow
def test_replicas_answer_follow_the_folder_and_are_replaced(tmp_path):
    model = taught(tmp_path / "model")
    with server(model.path, "--workers", "2", home=tmp_path, complaints=r"worker \d+ ended \(exit code -9\).*") as served:
        assert "Ask it at" in served.said
        with httpx2.Client(base_url=served.address, timeout=120) as client:
            with ThreadPoolExecutor(8) as pool:
                ask = lambda _: client.post("/api/predict", files=parts(png("sea", 7)))  # noqa: E731
                assert {found.status_code for found in pool.map(ask, range(24))} == {200}
                assert "amgc_images_total 24\n" in client.get("/metrics").text
                asked = [pool.submit(ask, number) for number in range(60)]
                model.learn([png("brick", seed) for seed in range(4)], "brick")
                classes = [[one["label"] for one in found.result().json()["answers"][0]["classes"]] for found in asked]
                assert {len(own) for own in classes} <= {2, 3} and all(own[0] == "sea" for own in classes)
            deadline = time.monotonic() + 60
            streak = 0
            while streak < 6:  # whichever process answers
                assert time.monotonic() < deadline
                streak = streak + 1 if len(client.get("/api/classes").json()["classes"]) == 3 else 0
                time.sleep(0.05)
        replicas = children(served.process.pid)
        os.kill(replicas[0], signal.SIGKILL)
        while len(set(children(served.process.pid)) - {replicas[0]}) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with httpx2.Client(base_url=served.address, timeout=120) as client, ThreadPoolExecutor(4) as pool:
            ask = lambda _: client.post("/api/predict", files=parts(png("sea", 7)))  # noqa: E731
            assert {found.status_code for found in pool.map(ask, range(8))} == {200}
            begun = [pool.submit(ask, number) for number in range(4)]
            time.sleep(0.05)
            served.process.send_signal(signal.SIGTERM)
            for one in begun:  # it is answered, or was never accepted
                assert isinstance(one.exception(), httpx2.TransportError) or one.result().status_code == 200
            assert sum(one.exception() is None for one in begun) >= 1


def children(pid: int) -> list[int]:
    """Return the replicas of a server, in which multiprocessing runs a function."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(one) for one in found if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]
