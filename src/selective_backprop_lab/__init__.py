"""Experiments with the library. The library never imports this package, which needs the extra `lab`."""
