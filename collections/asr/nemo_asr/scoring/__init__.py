"""Error rates, and the functions that scripts hand to callbacks."""
