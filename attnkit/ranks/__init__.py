"""Several processes that work on one command: how they are started, and what they tell another."""
