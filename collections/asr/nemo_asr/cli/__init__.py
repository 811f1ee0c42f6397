"""The subcommands of ``nemo-lite`` for speech, a file each: ``main(arguments) -> exit code``. See pyproject.toml."""
