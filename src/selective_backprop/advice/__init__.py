"""Advice whether selection pays: costs are measured on this machine, and epoch times are predicted from them."""
