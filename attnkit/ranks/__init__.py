"""Several processes that work on one command: how they are started, and what they tell another.

Start with `group.join` (a process joins the others), `group.share` (work that all take part in) and
`launch` (the processes of one machine).  Imports `errors` and `device` of the root.
"""
