"""Studies: many runs of the simulator, and the conclusions from them together.

    compare.py        two or more candidates on the same workloads
    comparison.py     paired differences with confidence intervals
    sweep/            candidates from a grid or a search: the best one, and the Pareto front
    tune/             rules that hold an SLO on recorded traffic, searched by replays
    calibration/      latency models from measurements, and the error of predictions
    what_if/          recorded traffic under other rules, with the errors of what is foretold
    candidate.py      a candidate: the sections of a configuration that a simulation reads; the error of its latency model
    runs.py           the runs of a study: tasks as bytes, and what all runs have in common
    presentation.py   how each result is printed, and written as one HTML page
    metrics.py        figures by name, which direction is better, and constraints on them
    workers.py        processes that make the runs: this one, several, or a Ray cluster

A run depends on nothing but its task: the same task gives the same figures in any process on any machine. So the results of a
study depend neither on the number of workers, nor on workers that were lost.
"""
