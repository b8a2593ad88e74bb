"""Time and memory of attention mechanisms over lengths, beside torch's fused kernel.

    plan.py     what to measure: mechanisms with options, shapes, budgets; no torch
    work.py     what a process of its own does: one probe for memory, or a race for time
    process.py  such processes: started, asked, killed when they take too long
    run.py      the order of it all; yields points
    fit.py      exponents over lengths, and what the next length will need
    report.py   points as tables and as an object for programs
    plot.py     points as a picture

On a CPU every probe is a process, so that its peak of resident memory is that of one mechanism
alone.  Times are taken afterwards, all mechanisms and the baseline in turn, round after round.
"""
