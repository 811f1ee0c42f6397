"""Makers of corpora: each turns recordings, or a synthesiser, into audio files and manifests. Run them as modules."""
