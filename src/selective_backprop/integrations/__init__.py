"""Selective-Backprop in other people's training loops: one module for each, which imports its framework only there."""
