"""Corpora: readers, tokenizers, encoded ids, batch plans, generated corpora."""
