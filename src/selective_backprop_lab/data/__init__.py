"""Data sets of images: reading, splitting, augmenting."""
