"""Errors as people and programs get them: a status and a sentence."""

from __future__ import annotations

import errno
import logging

from starlette.exceptions import HTTPException

from amgc.files import FileFormatError
from amgc.model import ModelBusyError, ModelError, PictureError

LOG = logging.getLogger("amgc.serve")
# 401: how to ask; 408: the rest of the request is not waited for
DEMANDED = {401: {"WWW-Authenticate": "Bearer"}, 408: {"Connection": "close"}}
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


class Problem(HTTPException):
    """An answer that is an error. `retry`: seconds after which another try makes sense."""

    def __init__(self, status: int, detail: str, retry: int | None = None) -> None:
        headers = {"Retry-After": str(retry)} if retry is not None else {}
        super().__init__(status, detail, headers | DEMANDED.get(status, {}))


def told(error: Exception) -> Problem:
    """What went wrong with the model; what is about this machine is told without its paths, and in full in the log."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, PictureError):
        return Problem(422, str(error))  # begins with the picture's name
    if isinstance(error.__cause__, PictureError):
        return Problem(422, sentence(str(error)))
    if isinstance(error, ModelError):
        return Problem(409, sentence(str(error)))
    if isinstance(error, ModelBusyError):
        return Problem(503, "Another process is changing the model; try again in 5 s.", 5)
    LOG.error("%s", error, exc_info=not isinstance(error, OSError | FileFormatError))
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return Problem(507, "The server's disk is full; the model is as it was before.")
    if isinstance(error, OSError | FileFormatError):
        return Problem(500, "The model's folder cannot be read or written; the server's log says why.")
    if isinstance(error, MemoryError):
        return Problem(500, "The server has too little memory for this; send fewer pictures at a time.")
    return Problem(500, "Something went wrong in the server; its log says what.")


def sentence(text: str) -> str:
    """With a capital letter, as it stands alone.

    >>> sentence("the model knows no class yet."), sentence("élan"), sentence("")
    ('The model knows no class yet.', 'Élan', '')
    """
    return text[:1].upper() + text[1:]
