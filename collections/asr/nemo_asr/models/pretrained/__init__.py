"""Models of NeMo as one file: the classes of NeMo 0.11, and reading ``.nemo`` files of 0.11 and 1.x."""
