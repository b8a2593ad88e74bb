"""Tensor operations for CPUs, each beside the plain form that defines it."""
