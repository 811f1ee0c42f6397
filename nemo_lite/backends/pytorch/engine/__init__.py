"""The training loop, evaluation and inference, and what they share. Re-exports of nothing: import the files."""
