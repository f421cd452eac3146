"""What requests and answers look like: the OpenAPI description is made of these."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from amgc.serve.settings import Limits
from amgc.serve.uploads import LABEL, NAMED


class Exact(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Error(Exact):
    """What went wrong, in words."""

    detail: str


class Health(Exact):
    """`stale`: the model's folder cannot be read any more; what was known before goes on answering."""

    status: Literal["ok", "stale"]
    amgc: str = Field(description="version")


class How(Exact):
    """What is wanted of a prediction."""

    top: int = Field(5, ge=1, le=1000, description="classes to name for each picture")
    reject: float | None = Field(
        None, ge=0, le=1, description="answer `unknown` where the fit is below this; 0.01 is a good choice"
    )


class Share(Exact):
    label: str
    probability: float = Field(ge=0, le=1)


class Answer(Exact):
    """Of one picture."""

    source: str = Field(description="the name that the picture was sent under")
    answer: str = Field(description="the likeliest class, or `unknown` if the picture is rejected")
    rejected: bool = Field(description="whether the fit is below `reject`")
    fit: float | None = Field(
        ge=0, le=1, description="the share of that class's own pictures that lie farther from it; null if that is not known"
    )
    classes: list[Share] = Field(description="the likeliest classes, the likeliest first")


class Answers(Exact):
    answers: list[Answer] = Field(description="in the order of the pictures")


class Skipped(Exact):
    source: str
    reason: str


class Lesson(Exact):
    """What was learned."""

    label: str
    pictures: int = Field(ge=1, description="that were learned from")
    known_before: bool = Field(description="whether the class was known, and now knows more")
    skipped: list[Skipped] = Field(description="pictures that could not be used")
    seconds: float = Field(ge=0)


class Label(Exact):
    """Names a class."""

    label: str = Field(min_length=1, max_length=LABEL)


class Forgotten(Exact):
    label: str
    classes: int = Field(ge=0, description="that are known still")


class Known(Exact):
    """A class."""

    label: str
    pictures: int | None = Field(ge=1, description="that it was learned from; null if that is not known")


class Learning(Exact):
    """The lesson that is being learned at this moment."""

    label: str
    done: int = Field(ge=0)
    total: int = Field(ge=1)


class Bounds(Exact):
    """What a request may hold at most."""

    upload_mb: int
    megapixels: int
    images: int


class Classes(Exact):
    """What the model knows, keeps, and is doing."""

    classes: list[Known] = Field(description="in order of arrival")
    kept: list[str] = Field(description="in words")
    not_kept: list[str] = Field(description="in words")
    bytes: int = Field(ge=0, description="of all files of the model")
    changeable: bool = Field(description="whether it can learn")
    learning: Learning | None
    waiting: int = Field(ge=0, description="lessons that wait for this one")
    problem: str | None = Field(description="why these may not be the latest classes")
    limits: Bounds


REASONS = {
    400: "the request cannot be read",
    401: "the token is missing or wrong",
    403: "the request comes from a page of another site, or asks for a name that is not this server's",
    404: "there is no such class",
    408: "the request is not complete, and nothing more of it comes",
    409: "the model cannot do this: it knows no class yet, or was made so that it cannot learn",
    413: "too many bytes, pictures or pixels",
    415: "the request is not multipart/form-data",
    422: "a parameter, a part or a picture cannot be used; `detail` says which and why",
    429: "too many requests of this client, or too many lessons waiting",
    500: "the model's folder cannot be read or written, or there is a bug",
    503: "another process is changing the model, or too much is being sent at once",
    507: "the disk is full",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The descriptions of an operation's errors."""
    return {status: {"model": Error, "description": REASONS[status]} | _headers(status) for status in statuses}


def _headers(status: int) -> dict[str, Any]:
    if status == 401:
        return {"headers": {"WWW-Authenticate": {"required": True, "schema": {"type": "string"}}}}
    if status in (429, 503):
        about = {"description": "seconds to wait", "required": True, "schema": {"type": "integer", "minimum": 1}}
        return {"headers": {"Retry-After": about}}
    return {}


def form(limits: Limits, label: bool) -> dict[str, Any]:
    """The description of a multipart request."""
    picture = {"type": "string", "format": "binary", "description": "a JPEG, PNG, WebP, GIF, TIFF, BMP … file"}
    properties: dict[str, Any] = {"images": {"type": "array", "items": picture, "minItems": 1, "maxItems": limits.images}}
    if label:
        properties["label"] = {"type": "string", "minLength": 1, "maxLength": LABEL, "pattern": NAMED}
    schema = {"type": "object", "properties": properties, "required": sorted(properties), "additionalProperties": False}
    encoding = {"images": {"contentType": "image/*"}}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema, "encoding": encoding}}}}
