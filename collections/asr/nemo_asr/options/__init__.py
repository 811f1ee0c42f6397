"""Options of training: groups, and what a configuration gives in their place."""
