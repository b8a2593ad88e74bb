"""Fast forms of attention for CPUs, each beside the plain form that defines it."""
