"""What tests share: toys, launchers, ranks, corpora."""
