"""Checkpoints on the disk: their records, and how they come and go. No tensors in here."""
