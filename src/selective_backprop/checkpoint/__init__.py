"""Checkpoints of a whole run, for any number of ranks."""
