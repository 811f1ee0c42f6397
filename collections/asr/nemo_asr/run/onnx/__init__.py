"""Models in ONNX files, for whole recordings and for streams."""
