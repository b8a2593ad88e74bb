"""Probes: what parts of a trained model do, found by taking them away or measuring them."""

from attnkit.probe.heads import Effect, Place, probe_heads, silenced

__all__ = ["Effect", "Place", "probe_heads", "silenced"]
