"""The core: typed modules, DAGs and callbacks, without torch. ``__init__.pyi`` lists the names.

The factory and ``NeuralGraph``, which NeMo has here, stand above the backend.
"""

from nemo_lite.base.aliases import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
