"""Errors of the HTTP API: a status and a message."""

from __future__ import annotations

import errno
import logging

from starlette.exceptions import HTTPException

from amgc.core.privacy import BudgetError
from amgc.files import FileFormatError
from amgc.model import ImageError, ModelBusyError, ModelError

LOG = logging.getLogger("amgc.serve")
# 408: the server does not wait for the rest of the request
HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 408: {"Connection": "close"}}
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


class ApiError(HTTPException):
    """An error response. `retry` is the number of seconds after which to try again."""

    def __init__(self, status: int, detail: str, retry: int | None = None) -> None:
        headers = {"Retry-After": str(retry)} if retry is not None else {}
        super().__init__(status, detail, headers | HEADERS.get(status, {}))


class StoppedError(ApiError):
    """The server is shutting down."""

    def __init__(self) -> None:
        super().__init__(503, "The server is shutting down; the model has not changed.", 10)


class AbandonedError(ApiError):
    """The client has disconnected and cannot receive the response."""

    def __init__(self) -> None:
        super().__init__(400, "The client has disconnected.")


def api_error(error: Exception) -> ApiError:
    """Return the response for an exception. Paths on the server appear only in its log."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ImageError):
        return ApiError(422, str(error))  # starts with the name of the image
    if isinstance(error.__cause__, ImageError):
        return ApiError(422, sentence(str(error)))
    if isinstance(error, ModelError | BudgetError):
        return ApiError(409, sentence(str(error)))
    if isinstance(error, ModelBusyError):
        return ApiError(503, "Another process is changing the model; try again in 5 s.", 5)
    LOG.error("%s", error, exc_info=not isinstance(error, OSError | FileFormatError))
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return ApiError(507, "The server's disk is full; the model has not changed.")
    if isinstance(error, OSError | FileFormatError):
        return ApiError(500, "The model's folder cannot be read or written; see the server's log.")
    if isinstance(error, MemoryError):
        return ApiError(500, "The server is out of memory; send fewer pictures at a time.")
    return ApiError(500, "Internal error; see the server's log.")


def sentence(text: str) -> str:
    """Return the text with an initial capital.

    >>> sentence("the model has no classes yet."), sentence("élan"), sentence("")
    ('The model has no classes yet.', 'Élan', '')
    """
    return text[:1].upper() + text[1:]
