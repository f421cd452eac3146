"""Responses of the server, and refused requests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from serving import BASE, encoded, parts, png, taught

pytest.importorskip("fastapi", reason="needs the extra `serve`")
from fastapi.testclient import TestClient

from amgc.model import Model, ModelError
from amgc.model.inputs import Input
from amgc.serve.app import create_app
from amgc.serve.guard import Limits, Settings
from amgc.serve.update_queue import UpdateQueue


def known(client: TestClient) -> dict[str, int]:
    return {one["label"]: one["pictures"] for one in client.get("/api/classes").json()["classes"]}


def test_a_prediction_is_the_models_own(client, model):
    sent = [png("sea", 100), png("grass", 101)]
    answers = client.post("/api/predict?top=2&reject=0.01", files=parts(*sent)).json()["answers"]
    assert [one["classes"][0]["label"] for one in answers] == ["sea", "grass"]
    expected = model.predict(sent, 2, 0.01)
    for one, own in zip(answers, expected, strict=True):
        assert [share["label"] for share in one["classes"]] == list(own.labels)
        np.testing.assert_allclose([share["probability"] for share in one["classes"]], own.probabilities, rtol=1e-6)
        assert one["fit"] == pytest.approx(own.fit) and one["answer"] == own.answer
    assert [one["source"] for one in answers] == ["1.png", "2.png"]


def test_a_class_is_learned_asked_for_and_forgotten(client, model):
    lesson = client.post("/api/learn", files=parts(*(png("brick", seed) for seed in range(6))), data={"label": "brick"}).json()
    assert (lesson["label"], lesson["pictures"], lesson["known_before"], lesson["skipped"]) == ("brick", 6, False, [])
    assert known(client) == {"grass": 12, "sea": 12, "brick": 6} == Model.open(model.path).classes
    answer = client.post("/api/predict", files=parts(png("brick", 100))).json()["answers"][0]
    assert answer["answer"] == "brick"
    again = client.post("/api/learn", files=parts(png("brick", 7)), data={"label": "brick"}).json()
    assert again["known_before"] and known(client)["brick"] == 7
    assert client.post("/api/forget", json={"label": "brick"}).json() == {"label": "brick", "classes": 2}
    assert client.post("/api/forget", json={"label": "brick"}).status_code == 404
    assert known(client) == {"grass": 12, "sea": 12} == Model.open(model.path).classes


def test_after_the_response_to_learn_no_progress_is_reported(model):
    """At the moment of the response, when the page asks for the progress; for an update that succeeds and one that fails."""
    updates, begin, seen = UpdateQueue(model, waiting=4), threading.Event(), []
    pictures = [Input(f"{seed}", png("brick", seed)) for seed in range(3)]
    updates.start()
    try:
        updates._submit(begin.wait)  # so that the lessons wait for the test
        lessons = [updates.learn(given, "brick") for given in (pictures, [])]
        for lesson in lessons:
            lesson.add_done_callback(lambda _: seen.append(updates.progress))
        begin.set()
        assert lessons[0].result(timeout=300).added == {"brick": 3}
        assert isinstance(lessons[1].exception(timeout=300), ModelError)
    finally:
        begin.set()
        updates.close()
    assert seen == [None, None]


def test_an_empty_model_says_what_it_needs_and_learns_its_first_class(tmp_path):
    model = Model.create(tmp_path / "model", filters=8)
    with TestClient(create_app(model), base_url=BASE) as client:
        refused = client.post("/api/predict", files=parts(png("sea", 1)))
        assert refused.status_code == 409 and "has no classes yet" in refused.json()["detail"]
        assert client.post("/api/learn", files=parts(png("sea", 1)), data={"label": "sea"}).status_code == 200
        answer = client.post("/api/predict", files=parts(png("sea", 2))).json()["answers"][0]
        assert answer["classes"] == [{"label": "sea", "probability": 1.0}]


@pytest.mark.parametrize("label", ["a/b\\..", "🦊", "木の葉", "x" * 300, "?&#%2F", "e\u0301"])
def test_a_class_may_have_any_name(client, label):
    lesson = client.post("/api/learn", files=parts(png("brick", 1), png("brick", 2)), data={"label": label})
    assert lesson.status_code == 200
    assert lesson.json()["label"] in known(client)
    assert client.post("/api/forget", json={"label": label}).status_code == 200
    assert len(known(client)) == 2


def test_pictures_that_cannot_be_used_are_named(client):
    sent = parts(png("brick", 1), b"no picture at all", png("brick", 2)[:200])
    lesson = client.post("/api/learn", files=sent, data={"label": "brick"}).json()
    assert lesson["pictures"] == 1
    assert [one["source"] for one in lesson["skipped"]] == ["2.png", "3.png"]
    refused = client.post("/api/predict", files=sent)
    assert refused.status_code == 422 and "2.png" in refused.json()["detail"]
    nothing = client.post("/api/learn", files=parts(b"no picture"), data={"label": "paper"})
    assert nothing.status_code == 422 and "paper" not in known(client)


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        ({"url": "/api/learn", "files": parts(b"x")}, 422, "label"),
        ({"url": "/api/learn", "files": parts(b"x"), "data": {"label": "  "}}, 422, "label"),
        ({"url": "/api/learn", "files": parts(b"x"), "data": {"label": "y" * 1001}}, 422, "1000"),
        ({"url": "/api/learn", "files": parts(b"x"), "data": {"label": "a", "name": "b"}}, 422, "unexpected part"),
        ({"url": "/api/predict", "files": [("image", ("a.png", b"x"))]}, 422, "images"),
        ({"url": "/api/predict", "files": {"images": (None, "text")}}, 422, "picture 1 cannot be used"),
        ({"url": "/api/learn", "files": [*parts(b"x"), ("label", ("label.txt", b"a"))]}, 422, "unexpected part"),
        ({"url": "/api/predict", "data": {"images": "x"}}, 415, "multipart"),
        ({"url": "/api/predict", "content": b"x", "headers": {"Content-Type": "multipart/form-data"}}, 400, "boundary"),
        ({"url": "/api/predict?top=0", "files": parts(b"x")}, 422, "top"),
        ({"url": "/api/predict?reject=2", "files": parts(b"x")}, 422, "reject"),
        ({"url": "/api/predict?reject=nan", "files": parts(b"x")}, 422, "reject"),
        ({"url": "/api/predict?tpo=2", "files": parts(b"x")}, 422, "tpo"),
        ({"url": "/api/forget", "json": {"label": ""}}, 422, "label"),
        ({"url": "/api/forget", "json": {"label": "a", "more": 1}}, 422, "more"),
        ({"url": "/api/forget", "content": b'{"label": "\\ud800"}', "headers": {"Content-Type": "application/json"}}, 422, ""),
        ({"url": "/api/forget", "content": b'{"label": "sea"}', "headers": {"Content-Type": "text/plain"}}, 422, ""),
        ({"url": "/api/forget", "json": {"label": "\0"}}, 404, "name"),
        ({"url": "/api/learn", "files": parts(b"x"), "data": {"label": "a\0"}}, 422, "label"),
        ({"url": "/api/learn", "files": parts(b"x"), "data": {"label": "\u2800"}}, 422, "cannot be seen"),
        ({"url": "/api/learn", "files": parts(b"x"), "data": {"label": "\u3164"}}, 422, "cannot be seen"),
        ({"url": "/api/rename", "json": {"label": "sea", "to": "\u2800"}}, 422, "cannot be seen"),
    ],
)
def test_the_response_to_a_wrong_request_says_what_is_wrong(client, request_, status, words):
    answer = client.post(**request_)
    assert answer.status_code == status, answer.text
    assert words.lower() in answer.json()["detail"].lower() and list(answer.json()) == ["detail"]
    assert known(client) == {"grass": 12, "sea": 12}


CLAIMED = [
    ("unicode_escape", rb"\ud800", 200),
    ("utf-7", b"+2AA-", 200),
    ("punycode", b"a-ud800", 200),
    ("undefined", b"a", 200),
]


@pytest.mark.parametrize(("charset", "label", "status"), [*CLAIMED, ("latin-1", b"\xe9", 422), ("utf-8", b"\xed\xa0\x80", 422)])
def test_a_label_is_utf_8_whatever_charset_is_claimed(client, charset, label, status):
    body = b'--x\r\nContent-Disposition: form-data; name="label"\r\n\r\n' + label
    body += b'\r\n--x\r\nContent-Disposition: form-data; name="images"; filename="\\ud800.png"\r\n\r\n' + png("brick", 1)
    headers = {"Content-Type": f"multipart/form-data; boundary=x; charset={charset}"}
    answer = client.post("/api/learn", content=body + b"\r\n--x--\r\n", headers=headers)
    assert answer.status_code == status, answer.text
    assert list(known(client))[2:] == ([label.decode()] if status == 200 else [])
    assert status == 200 or "UTF-8" in answer.json()["detail"]


def eventually(seen: Callable[[], bool]) -> None:
    """Wait until the server has looked at the folder."""
    deadline = time.monotonic() + 300
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_change_by_another_process_is_noticed(client, model):
    Model.open(model.path).forget("grass")
    eventually(lambda: known(client) == {"sea": 12})
    answer = client.post("/api/predict?top=9", files=parts(png("grass", 50))).json()["answers"][0]
    assert [one["label"] for one in answer["classes"]] == ["sea"]


def test_a_change_between_opening_and_serving_is_noticed(model):
    Model.open(model.path).forget("grass")
    with TestClient(create_app(model), base_url=BASE) as client:
        eventually(lambda: known(client) == {"sea": 12})


def test_while_the_folder_cannot_be_read_what_was_known_answers(client, model):
    manifest = model.path / "manifest.json"
    content = manifest.read_bytes()
    manifest.write_text("{}")
    eventually(lambda: client.get("/api/health").json()["status"] == "stale")
    assert "cannot be read" in client.get("/api/classes").json()["problem"]
    assert client.post("/api/predict", files=parts(png("sea", 50))).json()["answers"][0]["answer"] == "sea"
    refused = client.post("/api/forget", json={"label": "sea"})
    assert refused.status_code == 500 and str(model.path) not in refused.text
    manifest.write_bytes(content)
    eventually(lambda: client.get("/api/health").json()["status"] == "ok")
    assert client.get("/api/classes").json()["problem"] is None


def test_a_busy_folder_is_reported(client, model):
    model.patience = 0.1
    with Model.open(model.path)._folder.lock():
        refused = client.post("/api/forget", json={"label": "sea"})
    assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
    assert str(model.path) not in refused.text


def test_a_full_disk_is_reported_and_the_model_is_as_before(client, model, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("amgc.model.state._write_classes", full)
    refused = client.post("/api/learn", files=parts(png("brick", 1)), data={"label": "brick"})
    assert refused.status_code == 507 and "disk is full" in refused.json()["detail"]
    assert known(client) == {"grass": 12, "sea": 12} == Model.open(model.path).classes


def test_more_lessons_than_the_queue_holds_are_refused_until_there_is_room(tmp_path, monkeypatch):
    import threading

    model, go = taught(tmp_path / "model"), threading.Event()
    original = Model.learn
    monkeypatch.setattr(Model, "learn", lambda *given, **how: go.wait(300) and original(*given, **how))
    with TestClient(create_app(model, Settings(limits=Limits(waiting=1))), base_url=BASE) as client:
        statuses: list[int] = []

        def send() -> None:
            statuses.append(client.post("/api/learn", files=parts(png("brick", 1)), data={"label": "brick"}).status_code)

        threads = [threading.Thread(target=send) for _ in range(2)]
        for place, thread in enumerate(threads):
            thread.start()
            while (client.get("/api/classes").json()["waiting"], client.get("/api/classes").json()["learning"] is None) != (
                place,
                False,
            ):
                time.sleep(0.01)
        refused = client.post("/api/learn", files=parts(png("brick", 1)), data={"label": "brick"})
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        learning = client.get("/api/classes").json()["learning"]
        assert learning == {"label": "brick", "done": 0, "total": 1}
        assert client.post("/api/predict", files=parts(png("sea", 9))).json()["answers"][0]["answer"] == "sea"
        go.set()
        for thread in threads:
            thread.join()
        assert statuses == [200, 200] and known(client)["brick"] == 2


def test_a_server_that_closes_gives_up_its_lessons(tmp_path, monkeypatch):
    import threading

    model, begun = taught(tmp_path / "model"), threading.Event()

    def endless(*_: object, progress, **__: object) -> None:
        while True:
            progress(1, 2)
            begun.set()
            time.sleep(0.01)

    monkeypatch.setattr(Model, "learn", endless)
    app = create_app(model)
    answers = []
    with TestClient(app, base_url=BASE) as client:

        def send() -> None:
            answers.append(client.post("/api/learn", files=parts(png("brick", 1)), data={"label": "brick"}))

        threads = [threading.Thread(target=send) for _ in range(2)]  # one is being learned, one waits
        for thread in threads:
            thread.start()
        assert begun.wait(300)
        while client.get("/api/classes").json()["waiting"] == 0:
            time.sleep(0.01)
        app.state.updates.stop()
        for thread in threads:
            thread.join(300)
        assert client.post("/api/forget", json={"label": "sea"}).status_code == 503
    assert [one.status_code for one in answers] == [503, 503] and "has not changed" in answers[0].json()["detail"]


def test_the_description_names_every_error(client):
    described = client.get("/openapi.json").json()
    paths = described["paths"]
    names = ("health", "classes", "predict", "learn", "forget", "rename", "undo", "open", "model.zip", "model.onnx")
    assert set(paths) == {f"/api/{name}" for name in names}
    assert set(paths["/api/predict"]["post"]["responses"]) == {
        *("200", "400", "403", "408", "409", "413", "415", "422", "429", "500", "503")
    }
    assert "HTTPValidationError" not in json.dumps(described)
    assert "Retry-After" in paths["/api/learn"]["post"]["responses"]["429"]["headers"]


def test_large_and_small_pictures_of_many_kinds_are_learned(client):
    names = ("JPEG", "WEBP", "GIF", "BMP", "TIFF")
    kinds = [encoded(np.full((40, 60, 3), 20 * level, np.uint8), kind) for level, kind in enumerate(names)]
    lesson = client.post("/api/learn", files=parts(*kinds), data={"label": "grey"}).json()
    assert lesson["pictures"] == 5 and lesson["skipped"] == []
    lesson = client.post("/api/learn", files=parts(kinds[0], kinds[1], kinds[1]), data={"label": "twice"}).json()
    assert lesson["pictures"] == 2 and lesson["skipped"] == [] and lesson["repeated"] == ["3.png"]


def test_a_private_model_says_what_it_gives_away_and_learns_nothing_beyond_its_budget(tmp_path):
    from amgc import Privacy

    model = Model.create(tmp_path / "private", "convnet", size=16, dim=8, privacy=Privacy(8.0))
    with TestClient(create_app(model), base_url=BASE) as client:
        pictures = parts(*(png("sea", seed) for seed in range(5)))
        assert client.post("/api/learn", files=pictures, data={"label": "sea"}).status_code == 200
        about = client.get("/api/classes").json()
        assert "differential privacy for each image" in about["reveals"][0] and about["undo"] is None
        refused = client.post("/api/learn", files=pictures, data={"label": "sea"})
        assert refused.status_code == 409 and "privacy budget of 'sea' is spent" in refused.json()["detail"]
