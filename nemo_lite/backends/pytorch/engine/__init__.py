"""The training loop, evaluation and inference, and what they share. Nothing is re-exported: import the files."""
