"""Attention decoders: which label comes next, from encoded frames and the labels before it."""
