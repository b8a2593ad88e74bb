"""Time and memory of attention mechanisms, of training and of decoding.

Start with `schedule.measure` (mechanisms over lengths beside torch's fused kernel, each in its own process, so that
its peak memory is that of one mechanism alone), `training_speed.training_speed` and `decoding_speed.measure` (time of
an update, and of decoding). Imports `experiment` and what is below it.
"""
