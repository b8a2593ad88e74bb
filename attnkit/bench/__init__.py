"""Time and memory of attention mechanisms over lengths, beside torch's fused kernel.

On a CPU every probe is a process, so that its peak of resident memory is that of one mechanism
alone.  Times are taken afterwards, all mechanisms and the baseline in turn, round after round.
"""
