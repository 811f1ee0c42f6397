"""Checkpoints: tensors in files, sets of files in a folder, and how a run saves them."""
