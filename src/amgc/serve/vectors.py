"""Requests with feature vectors, as JSON, for models that take vectors instead of images."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError
from starlette.requests import ClientDisconnect, Request

from amgc.model.inputs import vectors_from
from amgc.serve.errors import ApiError
from amgc.serve.schemas import Exact
from amgc.serve.uploads import LABEL_PATTERN, MAX_LABEL, Upload

MAX_VECTORS, MAX_NUMBERS = 10_000, 100_000  # vectors of a request, and numbers of a vector

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Vector = Annotated[list[Number], Field(min_length=1, max_length=MAX_NUMBERS)]


class Vectors(Exact):
    """Feature vectors of equal length."""

    vectors: list[Vector] = Field(min_length=1, max_length=MAX_VECTORS)


class LabelledVectors(Vectors):
    """Feature vectors of one class."""

    label: str = Field(min_length=1, max_length=MAX_LABEL, pattern=LABEL_PATTERN)


def json_body(label: bool) -> dict[str, Any]:
    """Describe a request with vectors."""
    schema = (LabelledVectors if label else Vectors).model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def read_body(request: Request) -> bytes:
    """Return the body of a request with vectors."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, 'This model takes vectors: send them as application/json, {"vectors": [[…], …]}.')
    try:
        return await request.body()
    except ClientDisconnect as error:
        raise ApiError(400, "The request is incomplete.") from error


def parse(body: bytes, label: bool) -> tuple[list[Upload], dict[str, str]]:
    """Return the vectors of a request, and its label."""
    try:
        found = (LabelledVectors if label else Vectors).model_validate_json(body)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_input=False, include_context=False)) from error
    texts = {"label": found.label} if isinstance(found, LabelledVectors) else {}
    if len({len(vector) for vector in found.vectors}) > 1:
        raise ApiError(422, "The vectors do not have the same number of features.")
    return [Upload(one.name, one.source) for one in vectors_from(np.array(found.vectors))], texts
