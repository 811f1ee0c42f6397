"""What recognises, without PyTorch: audio, texts, searches, transcripts, streams, the server."""
