"""From waveforms to features, and augmentation of features."""
