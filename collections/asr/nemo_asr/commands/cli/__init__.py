"""The subcommands that learn and score: train, eval, data, demo, models, report."""
