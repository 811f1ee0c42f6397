"""Reading of recordings: files, containers, pieces."""
