"""What a recipe as a whole does: its cost explained, its variants and seeds trained and scored.

Start with `training.train` (all runs of a recipe, which a `settings.TrainingSettings` plans, in turn or side by side)
and `experiment.Experiment` (the steps of each: what of a run is done, data, training, scores).
Imports `train`, `scoring`, `runs` and what is below them.
"""
