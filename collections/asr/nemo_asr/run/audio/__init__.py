"""Reading of recordings: files, containers, pieces, growing files."""
