"""Reading and writing files that strangers or killed processes may have left."""
