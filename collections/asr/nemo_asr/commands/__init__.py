"""Training, evaluation and their subcommands."""
