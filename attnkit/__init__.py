"""Experiments with interchangeable attention mechanisms in one sequence-to-sequence model."""

__version__ = "0.1.0"
