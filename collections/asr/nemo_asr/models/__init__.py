"""Networks and losses, and NeMo's whole models. ``__init__.pyi`` lists the names."""

from nemo_lite.base.aliases import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
