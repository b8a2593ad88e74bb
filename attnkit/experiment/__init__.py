"""Experiments: the variants and seeds of a recipe trained, scored and compared; its cost; conversion and tuning.

Start with `training.train` (trains all runs of a recipe), `settings.TrainingSettings` (its settings) and
`experiment.Experiment` (the steps of each run). Imports `train`, `scoring`, `runs` and the packages below them.
"""
