"""One training run: its settings, its folder, its records; on one rank or several."""
