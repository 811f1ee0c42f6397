"""A re-export under NeMo's module name; the code is in ``utils/alive/registries.py``."""

from nemo_lite.utils.alive.registries import NmTensorNameRegistry as NmTensorNameRegistry
