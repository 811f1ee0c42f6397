"""Backends that execute DAGs, and files of tensors, which NeMo has here. ``__init__.pyi`` lists the names."""

from nemo_lite.base.aliases import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
