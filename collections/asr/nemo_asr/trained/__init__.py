"""Trained models: their folder, loading them, keeping the best one of a run."""
