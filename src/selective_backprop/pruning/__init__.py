"""Choosing data before training: scores, pruning, and records of what a run selected."""
