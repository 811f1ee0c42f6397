"""Data layers of speech, manifests, tar shards, checks of data sets."""
