"""What recognises: audio, text, search, transcription, ONNX models, streams, the server. No torch."""
