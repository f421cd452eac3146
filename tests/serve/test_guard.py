"""Access control and limits: token, origin, rate and size."""

from __future__ import annotations

import asyncio
import struct
import tempfile
import zlib

import pytest
from serving import BASE, encoded, parts, png, taught

pytest.importorskip("fastapi", reason="needs the extra `serve`")
import numpy as np
from fastapi.testclient import TestClient
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartParser
from starlette.responses import Response

from amgc.serve.app import create_app
from amgc.serve.guard import Guard, Limits, Settings
from amgc.serve.server import serve

TOKEN = "correct horse battery"
ASKED = ["/api/classes", "/api/predict", "/api/learn", "/api/forget", "/api/rename", "/api/undo", "/api/open", "/api/model.zip"]
SCRIPTS = ("app", "ask", "cards", "parts", "pictures", "state")
PAGE = ("/", *(f"/{name}.js" for name in SCRIPTS), "/style.css", "/icon.svg")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return taught(tmp_path_factory.mktemp("guard") / "model")


def client(model, base: str = BASE, **settings) -> TestClient:
    return TestClient(create_app(model, Settings(**settings)), base_url=base)


def ask(client: TestClient, path: str, **how):
    return client.get(path, **how) if path in ("/api/classes", "/api/model.zip") else client.post(path, **how)


async def raw(app, path: str, length: int, *messages: dict, every: float | None = None) -> int:
    """The status that is answered to a request that announces `length` bytes, of which these messages come and then nothing.

    every : the last message comes again and again, after so many seconds.
    """
    headers = {"host": "localhost", "content-type": "multipart/form-data; boundary=x", "content-length": str(length)}
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "client": ("10.0.0.1", 1)}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers.items()]
    coming, statuses = iter(messages), []

    async def receive() -> dict:
        for message in coming:
            return message
        if every is not None:
            await asyncio.sleep(every)
            return messages[-1]
        await asyncio.Event().wait()
        raise AssertionError("nothing sets it")

    async def send(message: dict) -> None:
        statuses.append(message.get("status"))

    await app(scope, receive, send)
    return statuses[0]


# ---- from where ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "LOCALHOST:9", "[::1]:8000", "[::1]"])
def test_the_machines_own_names_are_answered_to(model, host):
    assert client(model).get("/api/classes", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "",
        "localhost.evil.example",
        "[::1].evil.example",
        "10.0.0.1",
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/classes", "/api/health", "/openapi.json"])
def test_a_name_that_was_made_to_point_here_is_not(model, host, path):
    answer = client(model).get(path, headers={"Host": host})
    assert answer.status_code == 403 and list(answer.json()) == ["detail"]


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "http://127.0.0.1:9000",
        "http://localhost:8000",
        "file://",
        "",
        "http://[::1",
        "http://[x]",
        "//127.0.0.1:8000",
        "ftp://127.0.0.1:8000",
    ],
)
@pytest.mark.parametrize("path", ASKED)
def test_a_page_of_another_site_is_refused(model, path, origin):
    answer = ask(client(model), path, headers={"Host": "127.0.0.1:8000", "Origin": origin})
    assert answer.status_code == 403 and "another site" in answer.json()["detail"]


def test_a_browser_that_names_the_site_alone_is_believed(model):
    asking = client(model)
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        assert asking.get("/api/classes", headers={"Sec-Fetch-Site": site}).status_code == status


def test_the_page_itself_and_programs_may_ask(model):
    asking = client(model)
    own = {"Host": "127.0.0.1:8000", "Origin": "http://127.0.0.1:8000", "Sec-Fetch-Site": "same-origin"}
    for headers in (own, {}):
        assert asking.post("/api/predict", files=parts(png("sea", 1)), headers=headers).status_code == 200


# ---- the token -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header", [None, "", TOKEN, f"Basic {TOKEN}", "Bearer", "Bearer wrong", f"Bearer {TOKEN}x", "Bearer é"]
)
@pytest.mark.parametrize("path", ASKED)
def test_without_the_token_nothing_is_revealed(model, path, header):
    given = {} if header is None else {"Authorization": header.encode("latin-1")}
    answer = ask(client(model, token=TOKEN, names=None), path, headers=given)
    assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
    assert "sea" not in answer.text


def test_with_the_token_all_is_as_without_one_and_any_name_will_do(model):
    asking = client(model, "http://box.example", token=TOKEN, names=None)
    asking.headers["Authorization"] = f"Bearer {TOKEN}"
    assert asking.get("/api/classes").status_code == 200
    assert asking.post("/api/predict", files=parts(png("sea", 1))).status_code == 200


def test_the_page_and_health_need_no_token_and_the_description_names_it(model):
    asking = client(model, token=TOKEN)
    for path in (*PAGE, "/docs", "/classify.py", "/api/health"):
        assert asking.get(path).status_code == 200
    described = asking.get("/openapi.json").json()
    assert described["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
    assert described["paths"]["/api/learn"]["post"]["security"] == [{"token": []}]
    assert "401" in described["paths"]["/api/classes"]["get"]["responses"]


def test_a_short_token_is_refused(model):
    with pytest.raises(ValueError, match="has 5 characters; use at least 16"):
        serve(model, "127.0.0.1", 0, "short", Limits(), lambda *_: None)


@pytest.mark.parametrize(
    "token", ["correct horse bátt", "правильная лошадь", "correct horse\n battery", " correct horse battery"]
)
def test_a_token_that_cannot_be_sent_is_refused(model, token):
    with pytest.raises(ValueError, match="printable ASCII"):
        serve(model, "127.0.0.1", 0, token, Limits(), lambda *_: pytest.fail("served"))


# ---- how much ------------------------------------------------------------------------------------------------------------


def test_a_client_that_asks_too_often_waits(model):
    asking = client(model, limits=Limits(rate=3))
    answers = [asking.get("/api/classes") for _ in range(4)]
    assert [one.status_code for one in answers] == [200, 200, 200, 429]
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 20
    assert asking.get("/api/health").status_code == 200  # not counted
    assert TestClient(asking.app, base_url=BASE, client=("10.0.0.7", 1)).get("/api/classes").status_code == 200


@pytest.mark.parametrize("path", ["/api/classes", "/metrics"])
def test_guesses_of_the_token_are_counted(model, path):
    asking = client(model, token=TOKEN, limits=Limits(rate=3))
    guesses = [asking.get(path, headers={"Authorization": "Bearer guess"}).status_code for _ in range(4)]
    assert guesses == [401, 401, 401, 429]


def test_a_body_that_is_too_long_is_refused_before_it_is_read(model):
    asking = client(model, limits=Limits(upload_mb=1))
    unread = iter([b"never read"])
    headers = {"Content-Type": "multipart/form-data; boundary=x", "Content-Length": "1000001"}
    answer = asking.post("/api/predict", content=unread, headers=headers)
    assert answer.status_code == 413 and "1 MB" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("path", "kind"), [("/api/predict", "multipart/form-data; boundary=x"), ("/api/forget", "application/json")]
)
def test_a_body_without_a_length_is_counted_while_it_comes(model, path, kind):
    asking = client(model, limits=Limits(upload_mb=1))
    sent = (b" " * 100_000 for _ in range(20))
    assert asking.post(path, content=sent, headers={"Content-Type": kind}).status_code in (400, 413)
    streamed = (
        part for part in [b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n', *[b"0" * 100_000] * 20]
    )
    answer = asking.post(path, content=streamed, headers={"Content-Type": kind})
    assert answer.status_code == 413, answer.text


def test_bodies_together_have_a_limit_too_and_room_is_given_back(model):
    app = create_app(model, Settings(limits=Limits(upload_mb=3, total_upload_mb=2)))
    asking = TestClient(app, base_url=BASE)
    large = parts(encoded(np.random.default_rng(0).integers(0, 256, (900, 900, 3), dtype=np.uint8)))
    refused = asking.post("/api/predict", files=large)
    assert refused.status_code == 503 and refused.headers["retry-after"] == "2"
    for _ in range(5):  # together more than there is room for, were it not given back
        small = parts(encoded(np.random.default_rng(0).integers(0, 256, (500, 500, 3), dtype=np.uint8)))
        assert asking.post("/api/predict", files=small).status_code == 200


def test_bodies_that_never_come_take_no_room_and_are_given_up(model):
    app = create_app(model, Settings(limits=Limits(upload_mb=3, total_upload_mb=4, timeout=1)))
    begun = {"type": "http.request", "body": b"--x", "more_body": True}

    async def crowd() -> tuple[list[int], int]:
        paths = ["/api/predict", "/api/learn", "/api/forget"] * 3
        silent = [asyncio.create_task(raw(app, path, 3_000_000, begun)) for path in paths]
        await asyncio.sleep(0.1)
        asking = TestClient(app, base_url=BASE)
        meanwhile = await asyncio.to_thread(asking.post, "/api/predict", files=parts(png("sea", 1)))
        assert not any(task.done() for task in silent)
        return await asyncio.gather(*silent), meanwhile.status_code

    assert asyncio.run(crowd()) == ([408] * 9, 200)


@pytest.mark.parametrize("limits", [{"timeout": 1}, {"patience": 1}])
def test_a_body_that_trickles_is_given_up(limits):
    async def reads(scope, receive, send) -> None:
        while (await receive())["more_body"]:
            pass

    async def trickle() -> int:
        part = {"type": "http.request", "body": b"x", "more_body": True}
        return await asyncio.wait_for(
            raw(Guard(reads, Settings(limits=Limits(**limits))), "/api/predict", 9999, part, every=0.1), 5
        )

    assert asyncio.run(trickle()) == 408


def test_a_client_that_waits_for_its_answer_may_be_silent():
    async def waits(scope, receive, send) -> None:
        assert not (await receive())["more_body"]
        with pytest.raises(asyncio.TimeoutError):  # what it waits for is that the client goes
            await asyncio.wait_for(receive(), 1.3)
        await Response(status_code=200)(scope, receive, send)

    complete = {"type": "http.request", "body": b"x", "more_body": False}
    assert asyncio.run(raw(Guard(waits, Settings(limits=Limits(timeout=1))), "/api/predict", 1, complete)) == 200


@pytest.mark.parametrize("path", ["/api/predict", "/api/learn", "/api/forget"])
def test_an_upload_that_is_broken_off_is_not_logged(model, caplog, path):
    broken = asyncio.run(raw(create_app(model), path, 1000, {"type": "http.disconnect"}))
    assert broken == 400 and caplog.text == ""


def test_more_pictures_than_allowed_are_refused(model):
    asking = client(model, limits=Limits(images=3))
    for count, status in ((3, 200), (4, 413), (9, 413)):
        answer = asking.post("/api/predict", files=parts(*[png("sea", 1)] * count))
        assert answer.status_code == status
        assert status == 200 or "3 pictures" in answer.json()["detail"]


def large_png(side: int) -> bytes:
    """Return a PNG header that declares side × side pixels, without pixel data."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [1001, 20_000, 2**31 - 1])
def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(model, side, monkeypatch):
    from PIL import ImageFile

    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda *_: pytest.fail("decoded"))
    with client(model, limits=Limits(megapixels=1)) as asking:
        for path, form in (("/api/predict", {}), ("/api/learn", {"data": {"label": "large"}})):
            answer = asking.post(path, files=parts(large_png(side)), **form)
            assert answer.status_code == 413 and "1 million pixels" in answer.json()["detail"]


def test_the_pixels_of_a_request_have_a_limit_together(model, monkeypatch):
    from PIL import ImageFile

    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda *_: pytest.fail("decoded"))
    with client(model, limits=Limits(megapixels=1, total_megapixels=2)) as asking:
        for path, form in (("/api/predict", {}), ("/api/learn", {"data": {"label": "many"}})):
            answer = asking.post(path, files=parts(*[large_png(900)] * 3), **form)
            assert answer.status_code == 413 and "2 million pixels together" in answer.json()["detail"]


# ---- nothing on the disk -------------------------------------------------------------------------------------------------


def test_a_large_upload_makes_no_temporary_file(model, monkeypatch):
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a temporary file was made")

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)  # what a SpooledTemporaryFile turns into
    monkeypatch.setattr(tempfile, "mkstemp", refused)
    noise = encoded(np.random.default_rng(0).integers(0, 256, (1500, 1500, 3), dtype=np.uint8))
    assert len(noise) > 6_000_000
    assert client(model).post("/api/predict", files=parts(noise)).status_code == 200

    async def stream():
        yield b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
        yield noise
        yield b"\r\n--x--\r\n"

    with pytest.raises(AssertionError, match="temporary file"):  # the parser as it comes would have done it
        asyncio.run(MultiPartParser(Headers({"content-type": "multipart/form-data; boundary=x"}), stream()).parse())


# ---- what browsers are told ----------------------------------------------------------------------------------------------


def test_every_answer_carries_the_security_headers(model):
    asking = client(model)
    answers = [asking.get("/"), asking.get("/api/classes"), asking.get("/nothing"), asking.get("/", headers={"Host": "evil"})]
    for answer in [*answers, asking.put("/api/classes")]:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer" and answer.headers["cache-control"] == "no-store"
    assert [one.status_code for one in answers] == [200, 200, 404, 403]


def test_the_page_has_no_inline_script_or_style_and_loads_nothing_from_other_hosts(model):
    asking = client(model)
    page = asking.get("/").text
    assert "<style" not in page and "style=" not in page and " on" + "click" not in page and "<script>" not in page
    for path in PAGE:
        text = asking.get(path).text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text and "https://" not in text and "innerHTML" not in text
