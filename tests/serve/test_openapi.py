"""The server responds to valid and invalid requests as its OpenAPI description says."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from serving import png, server, taught

pytest.importorskip("fastapi", reason="needs the extra `serve`")
from amgc.serve.app import create_app

schemathesis = pytest.importorskip("schemathesis")

PICTURES = [png("sea", 1), png("grass", 2), png("brick", 3)]
OPERATIONS = [("get", "/api/health"), ("get", "/api/classes"), ("post", "/api/predict"), ("post", "/api/learn")]
OPERATIONS += [("post", "/api/forget"), ("post", "/api/rename"), ("post", "/api/undo"), ("post", "/api/open")]
OPERATIONS += [("get", "/api/model.zip"), ("get", "/api/model.onnx")]
schemathesis.openapi.media_type("image/*", st.sampled_from(PICTURES))


@cache
def _model() -> bytes:
    with TemporaryDirectory() as home:
        return taught(Path(home) / "model").packed()


schemathesis.openapi.media_type("application/zip", st.builds(_model))


@schemathesis.serializer("application/zip")
def _zip_file(_, value):
    return value


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    home = tmp_path_factory.mktemp("openapi")
    with server(taught(home / "model").path, "--rate", "1000000", home=home) as served:
        yield schemathesis.openapi.from_url(f"{served.address}/openapi.json")


VALID, INVALID = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
TRIED = [(VALID, *one) for one in OPERATIONS]
FREE = ("/api/undo", "/api/open")  # take nothing, or any bytes (test_take_along.py)
TRIED += [(INVALID, *one) for one in OPERATIONS if one[0] == "post" and one[1] not in FREE]  # others have no invalid requests


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "method", "path"), TRIED, ids=lambda part: getattr(part, "value", str(part).split("/")[-1]))
def test_the_server_is_as_it_describes_itself(described, method, path, mode):
    statuses = set()

    @settings(max_examples=15, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=described[path][method].as_strategy(generation_mode=mode))
    def check(case):
        if mode is INVALID and path == "/api/learn":
            assume(not isinstance(case.body, dict) or isinstance(case.body.get("label", ""), str))  # a 7 is sent as "7"
        statuses.add(case.call_and_validate(timeout=300).status_code)

    check()
    if mode is INVALID:
        assert statuses - {200}
    elif path not in ("/api/forget", "/api/rename", "/api/undo"):  # nothing that is made up is known
        assert 200 in statuses


def test_every_operation_is_among_them(tmp_path):
    paths = create_app(taught(tmp_path / "model")).openapi()["paths"]
    assert {(method, path) for path, methods in paths.items() for method in methods} == set(OPERATIONS)
