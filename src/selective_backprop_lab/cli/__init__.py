"""The commands of selective-backprop: train, compare, sweep, report, advise, diet, list, demo."""

from selective_backprop_lab.cli.app import app

__all__ = ["app"]
