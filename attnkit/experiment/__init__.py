"""What a recipe as a whole does: its cost explained, its variants and seeds trained and scored.

Start with `training.train` (all runs of a recipe, which a `settings.TrainingSettings` plans),
`jobs` (several at a time) and `resumption.state_of` (what of a run is done, and what its changed
recipe allows).
Imports `train`, `scoring`, `runs` and what is below them.
"""
