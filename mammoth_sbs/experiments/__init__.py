"""Sweeps: a grid of runs from one file, where they are executed, and where their results are kept."""
