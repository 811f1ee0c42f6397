"""What only scripts of NeMo 0.x need: its graphs, its modules' tutorials, its decorators. Frozen."""
