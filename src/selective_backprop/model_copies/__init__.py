"""Cheaper copies of a model that follow its weights, for selection passes."""
