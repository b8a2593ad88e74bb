"""Tensor operations, each with a fast implementation and the plain implementation that defines it.

Start with `linear_attention.causal_sums` (causal linear attention in chunks), `block_sparse` (self-attention over some
distances without a T x T matrix) and `recurrence` (checkpointed recurrences). Imports torch alone.
"""
