"""Whatever its own OpenAPI description allows or forbids, the server answers as the description says."""

from __future__ import annotations

import pytest
from serving import BASE, png, taught

pytest.importorskip("fastapi", reason="needs the extra `serve`")
schemathesis = pytest.importorskip("schemathesis")
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from amgc.serve.app import create_app
from amgc.serve.settings import Limits, Settings

TOKEN = "correct horse battery"
PICTURES = [png("sea", 1), png("grass", 2), png("brick", 3)]
