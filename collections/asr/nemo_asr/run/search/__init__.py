"""From log-probabilities to words: beam search, language models, lexicons."""
