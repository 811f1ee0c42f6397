"""Exported models in ONNX Runtime."""
