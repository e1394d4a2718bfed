"""SelectiveLoader and the pipeline behind it: plan, load, score, select, queue."""
