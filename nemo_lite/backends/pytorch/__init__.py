"""The PyTorch backend. ``__init__.pyi`` lists the names; failures are told to other ranks from here on."""

from nemo_lite.backends.pytorch.distributed.rendezvous import announce_failures
from nemo_lite.base.aliases import lazy_names

announce_failures()
__getattr__, __dir__ = lazy_names(__name__)
