"""A model as one file: its folder as a zip file, or its predictions as an ONNX file."""
