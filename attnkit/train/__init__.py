"""Training: the loop, its events, losses, optimiser, arithmetic and checkpoints.

Start with `fit.fit` (a job becomes events; it prints nothing), `state.TrainingState` (all that a
checkpoint has to hold) and `checkpoint.save` (a folder that is whole or absent). Imports
`models`, `data`, `runs`, `scoring` and what is below them.
"""
