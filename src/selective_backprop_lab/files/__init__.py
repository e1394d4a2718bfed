"""Reading and writing files safely: they may be incomplete, or come from somebody who cannot be trusted."""
