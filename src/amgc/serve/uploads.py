"""Read uploaded images into memory. Starlette's parser would write those above 1 MB to temporary files."""

from __future__ import annotations

import io
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from amgc.data.decode import formats
from amgc.model import ImageError
from amgc.model.inputs import Input
from amgc.serve.errors import ApiError
from amgc.serve.guard import Limits

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_LABEL = 1000  # maximum number of characters of a class name
# At least one visible character, and no null character. The meaning of \s differs between languages, so it is spelled out.
LABEL_PATTERN = r"^[^\x00]*[^\x00-\x20\x7f-\xa0\u1680\u2000-\u200f\u2028\u2029\u202f\u205f\u3000\ufeff][^\x00]*$"
MAX_FILE_NAME = 200  # characters of a file name that are kept for messages


@dataclass
class Upload(Input):
    """An uploaded image. `check` is called before it is decoded, and raises an error if the client has disconnected.

    pixels : number of pixels according to the header, set by `split_by_size`.
    """

    check: Callable[[], None] = lambda: None
    pixels: float = 0

    def read(self, least: int, size: int | None = None) -> Image:
        self.check()
        return super().read(least, size)


class MemoryParser(MultiPartParser):
    """A parser that never writes to disk: files would have to be larger than the largest request."""

    def __init__(self, headers: Headers, stream: AsyncGenerator[bytes, None], limits: Limits) -> None:
        super().__init__(headers, stream, max_files=limits.images + 1, max_fields=10, max_part_size=10 * MAX_LABEL)
        self.spool_max_size = limits.upload_bytes + 1

    def on_part_begin(self) -> None:
        """Decode names and texts as UTF-8, whatever charset a request names: some decode to text that cannot be encoded."""
        self._charset = "utf-8"
        super().on_part_begin()

    def on_part_end(self) -> None:
        if self._current_part.file is None:
            try:
                self._current_part.data.decode()
            except UnicodeDecodeError as error:
                raise ApiError(422, "The request contains text that is not UTF-8.") from error
        super().on_part_end()

    def on_headers_finished(self) -> None:
        """Treat `images` without a file name as files, not as text."""
        disposition, options = parse_options_header(self._current_part.content_disposition)
        if options.get(b"name") == b"images" and b"filename" not in options:
            self._current_part.content_disposition = disposition + b'; name="images"; filename=""'
        super().on_headers_finished()


async def read_form(
    request: Request, limits: Limits, check: Callable[[], None], fields: tuple[str, ...] = ()
) -> tuple[list[Upload], dict[str, str]]:
    """Return the files sent as `images`, with their `check`, and the texts sent as `fields`. Other parts are an error."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise ApiError(415, "Send pictures as multipart/form-data, in parts named images.")
    try:
        form = await MemoryParser(request.headers, request.stream(), limits).parse()
    except MultiPartException as error:
        if "Too many files" in error.message:
            raise _too_many(limits) from error
        raise ApiError(400, f"The request cannot be read: {error.message}") from error
    except FormParserError as error:
        raise ApiError(400, "The request cannot be read: it is not valid multipart/form-data.") from error
    except ClientDisconnect as error:  # the client is gone; an ApiError is not logged
        raise ApiError(400, "The request is incomplete.") from error
    pictures: list[Upload] = []
    texts: dict[str, str] = {}
    try:
        for part, value in form.multi_items():
            if isinstance(value, UploadFile) and part == "images":
                name = (value.filename or f"picture {len(pictures) + 1}")[:MAX_FILE_NAME]
                pictures.append(Upload(name, await value.read(), check=check))
            elif part in fields and isinstance(value, str) and part not in texts:
                texts[part] = value
            else:
                wanted = " and ".join(["files named images", *(f"one text named {name}" for name in fields)])
                raise ApiError(422, f"The request has an unexpected part; it takes {wanted}.")
    finally:
        await form.close()
    if len(pictures) > limits.images:
        raise _too_many(limits)
    if not pictures:
        raise ApiError(422, "No picture was sent; send at least one file in a part named images.")
    for name in fields:
        if not re.match(LABEL_PATTERN, texts.get(name, "")) or len(texts[name]) > MAX_LABEL:
            raise ApiError(422, f"The request needs a text named {name}: not empty, at most {MAX_LABEL} characters.")
    return pictures, texts


def _too_many(limits: Limits) -> ApiError:
    return ApiError(413, f"At most {limits.images} pictures can be sent at a time; send the others afterwards.")


def split_by_size(pictures: Sequence[Upload], limits: Limits) -> tuple[list[Upload], list[ImageError]]:
    """Return the images that are not too large, by their headers, and errors of the others. No image is decoded."""
    usable: list[Upload] = []
    refused: list[ImageError] = []
    total = 0
    for picture in pictures:
        picture.check()
        picture.pixels = _pixels(picture.source)
        if picture.pixels > limits.pixels:
            reason = f"it has more than {limits.megapixels} million pixels; make it smaller first"
            refused.append(ImageError(picture.name, reason))
        else:
            usable.append(picture)
            total += int(picture.pixels)
    if total > limits.total_megapixels * 1_000_000:
        most = f"{limits.total_megapixels:,} million pixels"
        raise ApiError(413, f"The pictures of a request may have at most {most} together; send fewer or smaller ones.")
    return usable, refused


def _pixels(content: bytes) -> float:
    """Return the number of pixels according to the header."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=formats()) as opened:
            return opened.width * opened.height
    except Image.DecompressionBombError:
        return float("inf")
    except Exception:  # not an image, or damaged: the model reports it
        return 0
