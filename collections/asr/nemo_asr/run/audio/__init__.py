"""Audio files to samples."""
