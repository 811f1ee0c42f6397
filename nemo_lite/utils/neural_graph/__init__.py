"""What NeMo keeps under ``nemo.utils.neural_graph``: files that re-export, nothing else."""
