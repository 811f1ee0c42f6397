"""From texts to labels."""
