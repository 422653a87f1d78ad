"""Studies: many runs of the simulator, and what they say together.

    compare/       two or more candidates on the same workloads: paired differences and how sure they are
    sweep/         candidates from a grid or a search: which is best, and which cannot be bettered
    candidate.py   what is compared: the sections of a configuration
    metrics.py     figures by name, and which way is better
    residual.py    what a latency model may be wrong by
    task.py        one run, as bytes; and what comes of it
    workers/       where runs are made: here, in processes, on Ray

A run depends on nothing but its task: the same task gives the same figures in any process on any machine, so that the results
of a study do not depend on how many of them there were, or on which was lost on the way.
"""
