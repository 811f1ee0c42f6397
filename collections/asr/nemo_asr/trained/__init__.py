"""Trained models: folders, cards, published files, fine-tuning, the best model of a training."""
