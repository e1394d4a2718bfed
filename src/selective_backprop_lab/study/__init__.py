"""What a set of finished runs shows: frontiers of plain training, and compute multipliers against them."""
