"""A model as one ONNX file: resizing, normalising, features and classifier; checked before it is put in its place."""

from __future__ import annotations

from amgc.model.export.export import Exported, export_onnx

__all__ = ["Exported", "export_onnx"]
