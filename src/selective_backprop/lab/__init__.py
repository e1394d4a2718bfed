"""Experiments with the library. The library never imports it; it needs the extra `lab`."""
