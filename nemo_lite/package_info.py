"""The version, where NeMo has it. No imports, so that every file may ask."""

__version__ = "0.1.0"
