"""Embedded corpora: made by seeded generators, so that everything runs without a download."""
