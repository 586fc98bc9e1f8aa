"""The token budget and the number of sequences that keep a latency target, by simulation."""
