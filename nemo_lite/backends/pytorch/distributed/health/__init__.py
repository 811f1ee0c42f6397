"""Who hangs, who died: heartbeats of the ranks, and one diagnosis for all of them."""
