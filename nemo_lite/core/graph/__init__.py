"""Typed modules, the wires between them, and the DAGs that they form. No torch in this package."""
