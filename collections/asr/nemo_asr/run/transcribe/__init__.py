"""From recordings to transcripts with times: segments, streams, alignment."""
