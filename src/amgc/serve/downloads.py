"""Export a model as an ONNX file with an example, and open a model from a zip file."""

from __future__ import annotations

import tempfile
from pathlib import Path

from amgc.files import FileFormatError
from amgc.model import Model
from amgc.model.state import State
from amgc.serve.errors import ApiError

MAX_RATIO = 4  # the files in a zip file may be this many times as large as the largest request

EXAMPLE = '''"""Classify images with model.onnx: python classify.py IMAGE...   (pip install onnxruntime pillow numpy)"""
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

model = onnxruntime.InferenceSession("model.onnx")
for path in sys.argv[1:]:
    image = np.asarray(ImageOps.exif_transpose(Image.open(path)).convert("RGB"))
    probabilities, _, names = model.run(None, {"images": image[None]})
    print(f"{path}: {names[0]}, {probabilities.max():.0%}")
'''


def onnx_file(model: Model) -> bytes:
    """Return the model as ONNX."""
    with tempfile.TemporaryDirectory(prefix="amgc-export-") as folder:
        path = Path(folder) / "model.onnx"
        try:
            model.export_onnx(path)
        except ImportError as error:
            raise ApiError(409, "The server needs an extra to write ONNX files: pip install 'amgc[onnx]'") from error
        return path.read_bytes()


def opened(content: bytes, most_bytes: int) -> State:
    """Return the state of the model in a zip file. Checksums are verified."""
    with tempfile.TemporaryDirectory(prefix="amgc-open-") as folder:
        try:
            return Model.unpacked(content, Path(folder) / "model", MAX_RATIO * most_bytes).state
        except (FileFormatError, FileNotFoundError, ValueError) as error:
            reason = str(error).replace(folder, "").replace("'/model/", "'")
            raise ApiError(422, f"The file cannot be opened as a model: {reason}") from error
