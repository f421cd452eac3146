"""Export a model as an ONNX file with an example, and open a model from a zip file."""

from __future__ import annotations

import tempfile
from pathlib import Path

from amgc.files import FileFormatError
from amgc.model import Model
from amgc.model.manifest import FUNCTION
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
VECTOR_EXAMPLE = '''"""Classify vectors with model.onnx: python classify.py FILE.npy   (pip install onnxruntime numpy)"""
import sys

import numpy as np
import onnxruntime

model = onnxruntime.InferenceSession("model.onnx")
vectors = np.load(sys.argv[1]).astype(np.float32)  # (n, d)
probabilities, _, names = model.run(None, {"vectors": vectors})
for row, name in enumerate(names):
    print(f"{row}: {name}, {probabilities[row].max():.0%}")
'''


def check_replacement(now: State, other: State) -> None:
    """Raise an error if a model cannot take the place of the served one: the other kind of input, or an unknown function."""
    nouns = [one.manifest.noun for one in (now, other)]
    if nouns[0] != nouns[1]:
        raise ApiError(422, f"The file is a model of {nouns[1]}s, and this server takes {nouns[0]}s. Serve its folder instead.")
    features = other.manifest.features
    if features.name == FUNCTION and features.given != now.manifest.features.given:
        raise ApiError(422, "The features of that model are computed by a Python function, which this server does not have.")


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
