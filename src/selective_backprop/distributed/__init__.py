"""Ranks that train together: everything the library knows about several processes."""
