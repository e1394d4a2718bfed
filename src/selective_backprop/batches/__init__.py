"""Batches of any nesting: their rows, their layout, and padding."""
