"""The command ``nemo-lite``, whose subcommands come from the installed packages."""
