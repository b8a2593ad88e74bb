"""Trained models as folders that other engines read, each with a check that answers agree.

Start with `exporting.export` (check, write, compare), `parity.compare` (the same lines through
the run and through what was exported) and `to_huggingface` (the one target that needs no other
engine). Imports `scoring`, `search`, `runs` and what is below them.
"""
