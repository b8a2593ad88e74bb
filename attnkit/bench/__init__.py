"""Time and memory of attention mechanisms, of training and of decoding.

Start with `schedule.measure` (mechanisms over lengths beside torch's fused kernel, each in a
process of its own, so that its peak of memory is that of one mechanism alone),
`training_speed.training_speed` and `decoding_speed.measure` (the time of an update and of a search).
Imports `experiment` and what is below it.
"""
