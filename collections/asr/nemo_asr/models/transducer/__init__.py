"""Transducers: prediction networks, the joint network, and the losses over its lattice."""
