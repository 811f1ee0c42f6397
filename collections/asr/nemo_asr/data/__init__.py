"""Manifests and the data layers over them."""
