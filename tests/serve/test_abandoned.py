"""Work ends when the client has disconnected or the server is stopped."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from PIL import Image
from serving import png, taught

pytest.importorskip("fastapi", reason="needs the extra `serve`")
from starlette.requests import Request

from amgc.model.inputs import Input
from amgc.serve.app import create_app
from amgc.serve.errors import AbandonedError, ApiError
from amgc.serve.work import Work, Workers

PATIENCE = 60  # seconds until a test that waits for something fails
LEFT = {"type": "http.disconnect"}


@pytest.fixture
def model(tmp_path):
    return taught(tmp_path / "model")


def sent(count: int) -> bytes:
    """Return a form with images, and a class name if they are to be learned."""
    head = b'--x\r\nContent-Disposition: form-data; name="images"; filename="%d"\r\n\r\n'
    images = [head % number + png("brick", number) + b"\r\n" for number in range(count)]
    return b"".join(images)


LABEL = b'--x\r\nContent-Disposition: form-data; name="label"\r\n\r\nbrick\r\n'


async def post(app, path: str, leaving: asyncio.Event) -> int:
    """Send three images, disconnect at the event, and return the status of the answer that nobody gets."""
    body = sent(3) + (LABEL if path == "/api/learn" else b"") + b"--x--\r\n"
    headers = [(b"host", b"localhost"), (b"content-type", b"multipart/form-data; boundary=x")]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers, "client": ("10.0.0.1", 1)}
    coming, statuses = iter([{"type": "http.request", "body": body}]), []

    async def receive() -> dict:
        for message in coming:
            return message
        await leaving.wait()
        return LEFT

    async def send(message: dict) -> None:
        statuses.append(message.get("status"))

    await app(scope, receive, send)
    return statuses[0]


def raises(check) -> bool:
    try:
        check()
    except ApiError:
        return True
    return False


@pytest.mark.parametrize(("reason", "status"), [("the client has gone", 400), ("the server is stopped", 503)])
@pytest.mark.parametrize("path", ["/api/predict", "/api/learn"])
def test_images_for_which_nobody_waits_are_not_decoded(model, monkeypatch, caplog, path, reason, status):
    app, read = create_app(model), []
    before = model.classes

    async def run() -> int:
        loop, leaving = asyncio.get_running_loop(), asyncio.Event()

        def first(picture, *_: object) -> Image.Image:
            """Decode an image while the client leaves or the server is stopped."""
            read.append(picture.name)
            loop.call_soon_threadsafe(leaving.set) if status == 400 else app.state.updates.stop()
            end = time.monotonic() + PATIENCE
            while time.monotonic() < end and not raises(picture.check):
                time.sleep(0.001)
            return Image.new("RGB", (32, 32))

        monkeypatch.setattr(Input, "read", first)
        async with app.router.lifespan_context(app):
            return await post(app, path, leaving)

    assert asyncio.run(run()) == status
    assert read == ["0"] and model.classes == before and caplog.text == ""


def test_work_that_has_not_begun_is_dropped_when_the_client_leaves():
    workers, release, done = Workers(1), threading.Event(), []
    busy = workers.submit(release.wait, PATIENCE)

    async def disconnected() -> dict:
        return LEFT

    request = Request({"type": "http", "headers": []}, disconnected)
    with pytest.raises(AbandonedError):
        asyncio.run(Work(threading.Event()).result(request, workers.submit(done.append, "begun")))
    release.set()
    assert busy.result(PATIENCE) and workers.submit(len, done).result(PATIENCE) == 0


def test_work_that_fails_raises_its_error():
    async def stays() -> dict:
        await asyncio.Event().wait()
        return LEFT

    request = Request({"type": "http", "headers": []}, stays)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(Work(threading.Event()).result(request, Workers(1).submit(divmod, 1, 0)))


def test_the_server_does_not_wait_for_a_thread_when_it_is_stopped(model, monkeypatch):
    app = create_app(model)
    release = threading.Event()
    late = threading.Timer(20, release.set)  # lets the test fail rather than hang
    late.start()

    async def run() -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def stuck(*_: object) -> Image.Image:
            loop.call_soon_threadsafe(begun.set)
            release.wait()
            return Image.new("RGB", (32, 32))

        monkeypatch.setattr(Input, "read", stuck)
        async with app.router.lifespan_context(app):
            asking = asyncio.create_task(post(app, "/api/predict", asyncio.Event()))
            await begun.wait()
            asking.cancel()
            await asyncio.wait([asking])

    asyncio.run(run())
    late.cancel()
    assert not release.is_set()
    assert all(one.daemon for one in threading.enumerate() if one.name.startswith("amgc-predict"))
    release.set()


def test_threads_end_with_their_workers():
    workers = Workers(3)
    inside = [workers.submit(threading.current_thread).result(PATIENCE) for _ in range(5)]
    assert len(set(inside)) <= 3
    del workers
    for thread in inside:
        thread.join(PATIENCE)
        assert not thread.is_alive()
