"""Tensor operations with a fast form beside the plain form that defines it.

Start with `linear_attention.causal_sums` (running sums in chunks), `block_sparse` (patterns of
blocks without a T x T matrix) and `recurrence` (states step by step). Imports torch alone.
"""
