"""Trained models and what they hear: model folders, transcripts, windows, the engines torch and ONNX Runtime."""
