"""Waveforms: reading files, perturbing samples."""
