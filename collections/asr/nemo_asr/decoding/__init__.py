"""From log-probabilities to texts."""
