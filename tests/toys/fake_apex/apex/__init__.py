"""A small stand-in for NVIDIA's apex with its published signatures (tag 24.04.01), on the CPU. Put its folder first on
``sys.path``. What it is asked is noted in ``apex.calls``.
"""

calls: list[tuple] = []
