"""Connections to a running server that never send a whole request."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from serving import png, taught

pytest.importorskip("fastapi", reason="needs the extra `serve`")
from amgc.serve import batching, connections, server
from amgc.serve.guard import Limits

PATIENCE = 60  # seconds until a test that waits for the server fails
HEALTH = b"GET /api/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
UNFINISHED = b"GET /api/health HTTP/1.1\r\nHost: local"
Connect = Callable[..., socket.socket]


@pytest.fixture
def connect(tmp_path, monkeypatch) -> Iterator[Connect]:
    """Serve a model in a thread, and return a function that connects and sends bytes."""
    running: list[server.Server] = []
    places: list[str] = []
    opened: list[socket.socket] = []
    started = threading.Event()

    class Kept(server.Server):
        async def startup(self, sockets=None) -> None:
            running.append(self)
            await super().startup(sockets)
            started.set()

    def connect(*sent: bytes) -> socket.socket:
        host, _, port = places[0].removeprefix("http://").partition(":")
        opened.append(socket.create_connection((host, int(port)), timeout=PATIENCE))
        opened[-1].sendall(b"".join(sent))
        return opened[-1]

    monkeypatch.setattr(server, "Server", Kept)
    arguments = (taught(tmp_path / "model"), "127.0.0.1", 0, None, Limits(), lambda place, _: places.append(place))
    thread = threading.Thread(target=server.serve, args=arguments)
    thread.start()
    try:
        assert started.wait(PATIENCE)
        yield connect
    finally:
        for one in opened:
            one.close()
        running[0].should_exit = True
        thread.join(PATIENCE)


def is_closed(one: socket.socket) -> bool:
    """Wait for the server to close a connection on which it has sent nothing."""
    try:
        return one.recv(1) == b""
    except ConnectionError:
        return True


def answer(one: socket.socket) -> tuple[int, dict]:
    """Return status and content of an answer, as HTTP/1.1 with a length."""
    file = one.makefile("rb")
    status = int(file.readline().split()[1])
    length = 0
    while (line := file.readline().strip()) != b"":
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    return status, json.loads(file.read(length))


def upload(*, complete: bool = True) -> bytes:
    """Return a request for a prediction, or all but its last byte."""
    body = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n' + png("sea", 1) + b"\r\n--x--\r\n"
    head = f"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    whole = head.encode() + b"Content-Type: multipart/form-data; boundary=x\r\n\r\n" + body
    return whole if complete else whole[:-1]


@pytest.fixture
def predicting(monkeypatch) -> Iterator[tuple[threading.Semaphore, threading.Event]]:
    """Let predictions begin, which releases the semaphore, and wait for the event."""
    begun, release, classify = threading.Semaphore(0), threading.Event(), batching.classify

    def waiting(*args, **kwargs):
        begun.release()
        release.wait(PATIENCE)
        return classify(*args, **kwargs)

    monkeypatch.setattr(batching, "classify", waiting)
    yield begun, release
    release.set()


def test_answers_are_sent_at_once():
    """Without TCP_NODELAY, the body of an answer waits until the client has acknowledged its header: 40 ms on Linux."""
    found: list[int] = []

    async def accept() -> None:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            found.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with server.bind("127.0.0.1", 0) as bound:
            async with await asyncio.start_server(accepted, sock=bound):
                reader, writer = await asyncio.open_connection(*bound.getsockname())
                await reader.read()
                writer.close()

    asyncio.run(accept())
    assert found
    assert found[0] != 0


@pytest.mark.parametrize("limit", ["MOST", "MOST_OF_CLIENT"])
def test_many_unfinished_headers_keep_nobody_out(connect, monkeypatch, limit):
    monkeypatch.setattr(connections, limit, 4)
    held = [connect(UNFINISHED) for _ in range(20)]
    assert answer(connect(HEALTH))[0] == 200
    assert answer(connect(upload()))[0] == 200
    assert all(is_closed(one) for one in held[:16])  # the oldest


def test_a_header_must_be_complete_in_time(connect, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    assert is_closed(connect()) and is_closed(connect(UNFINISHED))
    kept = connect(HEALTH)
    assert answer(kept)[0] == 200
    kept.sendall(UNFINISHED)  # a second request on the same connection
    assert is_closed(kept)


def test_time_for_the_header_does_not_end_the_body_or_the_answer(connect, monkeypatch, predicting):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    begun, release = predicting
    asking = connect(upload(complete=False))
    assert is_closed(connect())  # the time has passed
    asking.sendall(upload()[-1:])
    assert begun.acquire(timeout=PATIENCE)
    assert is_closed(connect())
    release.set()
    assert answer(asking)[0] == 200


def test_a_request_that_is_being_answered_is_not_closed_for_another(connect, monkeypatch, predicting):
    monkeypatch.setattr(connections, "MOST_OF_CLIENT", 2)
    begun, release = predicting
    asking = connect(upload())
    assert begun.acquire(timeout=PATIENCE)
    assert all(is_closed(one) for one in [connect(UNFINISHED) for _ in range(10)][:9])
    assert answer(connect(HEALTH))[0] == 200
    release.set()
    assert answer(asking)[0] == 200


def test_unfinished_bodies_give_way_to_a_new_connection(connect, monkeypatch):
    monkeypatch.setattr(connections, "MOST_OF_CLIENT", 2)
    read, received = threading.Semaphore(0), connections.Connection.data_received

    def data_received(self, data: bytes) -> None:
        received(self, data)
        if self.stage == 1:
            read.release()

    monkeypatch.setattr(connections.Connection, "data_received", data_received)
    first = connect(upload(complete=False))
    assert read.acquire(timeout=PATIENCE)
    connect(upload(complete=False))
    assert read.acquire(timeout=PATIENCE)
    assert answer(connect(HEALTH))[0] == 200
    assert is_closed(first)


def test_a_connection_is_refused_while_all_others_are_being_answered(connect, monkeypatch, predicting):
    monkeypatch.setattr(connections, "MOST_OF_CLIENT", 1)
    begun, release = predicting
    asking = connect(upload())
    assert begun.acquire(timeout=PATIENCE)
    assert is_closed(connect())
    release.set()
    assert answer(asking)[0] == 200
