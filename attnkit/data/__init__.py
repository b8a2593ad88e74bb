"""Corpora: readers, tokenizers, encoded ids, batch plans, generated corpora.

Start with `corpus.Corpus` (rows of each split, from files or generated), `preparation.prepare` (tokenizers and encoded
splits of a recipe) and `batch.plan` (batches of an epoch, a pure function of lengths, seed and epoch). Imports
`recipe`, `storage` and the packages below them.
"""
