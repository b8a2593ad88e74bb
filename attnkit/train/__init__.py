"""Training: the loop, its events, losses, optimiser, arithmetic and checkpoints."""
