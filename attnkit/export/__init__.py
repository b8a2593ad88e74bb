"""Trained models as folders that other engines read, each with a check that answers agree."""
