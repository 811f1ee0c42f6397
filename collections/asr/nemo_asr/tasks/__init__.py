"""What a model learns: its YAML, the modules and their roles, how they are connected."""
