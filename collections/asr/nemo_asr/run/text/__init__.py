"""From texts to labels, and back: labels, parsers, subwords, numbers, languages."""
