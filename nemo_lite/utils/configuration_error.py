"""A re-export under NeMo's module name; the code is in ``errors.py``."""

from nemo_lite.errors import ConfigurationError as ConfigurationError
