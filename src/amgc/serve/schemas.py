"""Requests and responses of the HTTP API. The OpenAPI description is generated from these."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from amgc.model.predict import MOST_TOLD
from amgc.serve.guard import Limits
from amgc.serve.uploads import LABEL_PATTERN, MAX_LABEL


class Exact(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Error(Exact):
    """An error message."""

    detail: str


class Health(Exact):
    """`stale`: the model's folder cannot be read; the server continues with the last state."""

    status: Literal["ok", "stale"]
    amgc: str = Field(description="version")


class PredictOptions(Exact):
    """Options of a prediction."""

    top: int = Field(5, ge=1, le=1000, description="number of classes to return for each image")
    reject: float | None = Field(
        None, ge=0, le=MOST_TOLD, description="answer `unknown` if the fit is below this threshold, such as 0.05"
    )


class ClassProbability(Exact):
    label: str
    probability: float = Field(ge=0, le=1)


class Prediction(Exact):
    """The prediction of one image."""

    source: str = Field(description="file name of the image")
    answer: str = Field(description="the most likely class, or `unknown` if the image is rejected")
    rejected: bool = Field(description="whether the fit is below `reject`")
    fit: float | None = Field(
        ge=0,
        le=MOST_TOLD,
        description="approximately the share of images of known classes that are less typical of their class; near 0 for "
        "most images of something else, but not for every image of a new class among similar ones; at most 0.5; null if there "
        "are too few images to estimate it, or no class statistics",
    )
    classes: list[ClassProbability] = Field(description="the most likely classes, the most likely one first")


class Predictions(Exact):
    answers: list[Prediction] = Field(description="in the order of the images")


class Skipped(Exact):
    source: str
    reason: str


class LearnResult(Exact):
    """The result of learning."""

    label: str
    pictures: int = Field(ge=1, description="number of images learned")
    known_before: bool = Field(description="whether the class was known before")
    in_memory: int = Field(ge=0, description="number of images of the class that are not written to the model's folder yet")
    skipped: list[Skipped] = Field(description="unreadable images")
    repeated: list[str] = Field(description="copies of other images of the request, which count once")
    learned_before: list[str] = Field(description="images that the class has probably learned before; they count twice")
    seconds: float = Field(ge=0)


class Label(Exact):
    """The name of a class."""

    label: str = Field(min_length=1, max_length=MAX_LABEL)


class Rename(Exact):
    """A class and its new name."""

    label: str = Field(min_length=1, max_length=MAX_LABEL)
    to: str = Field(min_length=1, max_length=MAX_LABEL, pattern=LABEL_PATTERN)
    join: bool = Field(False, description="join an existing class of the new name; without `join`, such a class is an error")


class LearnOptions(Exact):
    """Options of learning."""

    lesson: str = Field("", max_length=100, description="consecutive requests with the same value are undone together")


class UndoResult(Exact):
    undone: str = Field(description="the change, in words")
    classes: int = Field(ge=0, description="number of classes now")


class OpenResult(Exact):
    classes: int = Field(ge=0, description="number of classes now")


class ForgetResult(Exact):
    label: str
    classes: int = Field(ge=0, description="number of remaining classes")


class ClassCount(Exact):
    """A class."""

    label: str
    pictures: int | None = Field(ge=1, description="number of images learned; null if not known")
    in_memory: int = Field(ge=0, description="how many of them are not written to the model's folder yet")


class Learning(Exact):
    """Progress of the current update, in images."""

    label: str
    done: int = Field(ge=0)
    total: int = Field(ge=1)


class Quality(Exact):
    """The expected accuracy on new images, estimated from the class statistics by leave-one-out."""

    accuracy: float = Field(ge=0, le=1, description="share of correct answers, with equal weight for each class")
    margin: float = Field(ge=0, le=1, description="how far it may be from the real accuracy")
    confused: list[str] = Field(min_length=2, max_length=2, description="the two classes that are confused most often")
    confusion: float = Field(ge=0, le=1, description="mean probability of one of the two for images of the other")


class RequestLimits(Exact):
    """Limits of a request."""

    upload_mb: int
    megapixels: int
    images: int


class Input(Exact):
    """What the model takes."""

    kind: str = Field(pattern="^(image|vector)$", description="`image`, or `vector` if its features are given")
    numbers: int | None = Field(ge=1, description="length of a vector; null for images, and before it is known")


class Classes(Exact):
    """Classes and contents of the model, and what it is doing."""

    input: Input
    classes: list[ClassCount] = Field(description="in the order in which they were learned")
    hold: int = Field(ge=1, description="fewer new images of a class stay in memory until there are as many")
    kept: list[str] = Field(description="what is stored, in words")
    not_kept: list[str] = Field(description="what is never stored, in words")
    reveals: list[str] = Field(description="what others can find out about images from the model, in words")
    bytes: int = Field(ge=0, description="size of all files of the model")
    changeable: bool = Field(description="whether the model can learn")
    learning: Learning | None
    undo: str | None = Field(description="the change that can be undone, in words")
    quality: Quality | None = Field(description="null if there are too few images to estimate it, or no class statistics")
    enough: int = Field(ge=1, description="number of images per class that `quality` needs")
    forgotten: list[str] = Field(description="what remains of a class after it is forgotten, in words")
    waiting: int = Field(ge=0, description="number of updates in the queue")
    problem: str | None = Field(description="why the classes may be outdated; null if they are not")
    limits: RequestLimits


REASONS = {
    400: "the request cannot be read",
    401: "the token is missing or wrong",
    403: "the request comes from a page of another site, or uses a host name that is not this server's",
    404: "there is no such class",
    408: "the request is incomplete, and no more data arrived in time",
    409: "the model cannot do this: it has no classes yet, or cannot learn",
    413: "too many bytes, images or pixels",
    415: "the request is not of the expected type",
    422: "a parameter, part or image is invalid; `detail` says which and why",
    429: "too many requests from this client, or too many updates in the queue",
    500: "the model's folder cannot be read or written, or there is an internal error",
    503: "another process is changing the model, or too many images are being sent at the same time",
    507: "the disk is full",
}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the errors of an operation."""
    return {status: {"model": Error, "description": REASONS[status]} | _headers(status) for status in statuses}


def _headers(status: int) -> dict[str, Any]:
    if status == 401:
        return {"headers": {"WWW-Authenticate": {"required": True, "schema": {"type": "string"}}}}
    if status in (429, 503):
        about = {"description": "seconds to wait", "required": True, "schema": {"type": "integer", "minimum": 1}}
        return {"headers": {"Retry-After": about}}
    return {}


def form(limits: Limits, label: bool) -> dict[str, Any]:
    """Describe a multipart request."""
    picture = {"type": "string", "format": "binary", "description": "a JPEG, PNG, WebP, GIF, TIFF, BMP … file"}
    properties: dict[str, Any] = {"images": {"type": "array", "items": picture, "minItems": 1, "maxItems": limits.images}}
    if label:
        properties["label"] = {"type": "string", "minLength": 1, "maxLength": MAX_LABEL, "pattern": LABEL_PATTERN}
    schema = {"type": "object", "properties": properties, "required": sorted(properties), "additionalProperties": False}
    encoding = {"images": {"contentType": "image/*"}}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema, "encoding": encoding}}}}


def zip_body() -> dict[str, Any]:
    """Describe a request whose body is a zip file."""
    content = {"application/zip": {"schema": {"type": "string", "format": "binary"}}}
    return {"requestBody": {"required": True, "content": content}}


def binary(kind: str) -> dict[int | str, dict[str, Any]]:
    """Describe a response that is a file."""
    return {200: {"description": "the file", "content": {kind: {"schema": {"type": "string", "format": "binary"}}}}}
