"""The subcommands that recognise: transcribe, align, serve."""
