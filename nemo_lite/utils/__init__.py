"""Tools, at the places that they have under NeMo's ``nemo.utils``. ``__init__.pyi`` lists the names."""

from nemo_lite.base.aliases import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
