"""The import places of NeMo's speech parts: re-exports, and NeMo's shapes around our own parts."""
