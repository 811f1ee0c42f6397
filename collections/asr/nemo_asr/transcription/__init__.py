"""From recordings to transcripts: words with times and confidences, long recordings in windows, subtitle formats."""
