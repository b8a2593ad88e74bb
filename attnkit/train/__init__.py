"""Training: events, the loop, checkpoints, and sessions of several variants and seeds."""
