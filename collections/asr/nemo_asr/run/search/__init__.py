"""Searches: from what a model gives of each frame to label ids with times. Each family of models has its own."""
