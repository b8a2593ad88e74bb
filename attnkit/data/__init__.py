"""Corpora: readers, tokenizers, encoded ids, batch plans, generated corpora.

Start with `corpus.Corpus` (the rows of each split, from files or generated), `preparation.prepare` (a recipe becomes
tokenizers and encoded splits) and `batch.plan` (the batches of an epoch, a pure function of lengths, seed and
epoch). Imports `recipe`, `storage` and what is below them.
"""
