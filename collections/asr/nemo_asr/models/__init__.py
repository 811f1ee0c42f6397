"""Encoders, decoders and losses."""
