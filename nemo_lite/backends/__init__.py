"""Backends that execute DAGs."""
