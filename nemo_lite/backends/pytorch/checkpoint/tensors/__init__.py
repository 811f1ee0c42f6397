"""Safetensors files: written, read whole or a slice of each tensor, also where each rank wrote a part of them.

``torch.distributed.checkpoint`` is not used: its metadata is a pickle; its safetensors variant has no digests, holds no
numbers and texts beside tensors, and its ranks exchange pickled plans by collectives, which the thread that writes
while training goes on may not call.
"""
