"""Several processes for one command (SPMD over torch.distributed): every rank runs the command.

Start with `group.join`, the collectives of `group` (`broadcast_object`, `all_gather_object`, `all_reduce_sum`) and
`launch` (the processes of one machine). Imports `errors` and `device`.
"""
