"""What if: recorded traffic under other rules (`maitred replay`).

    recorded.py     the requests of a record, with what the decision log of the same run says of them
    recorded_log.py what that log says: of each request, and the rules in force
    traffic.py      these requests as a workload: which of them wait for an answer, how long the unknown answers are
    engines.py      what the engines are: a latency model fitted to the record, and the other facts that a simulation needs
    world.py        all of this together: parsed and calibrated once, simulated under many rules
    figures.py      figures of a run by name
    resampling.py   a figure in each resample of a bootstrap of blocks
    differences.py  differences of two runs of the same requests, with intervals
    bounds.py       bounds that other rules must keep
    result.py       what `maitred replay` prints, and writes

Example, for many candidates on all cores:

    recorded = read_recorded([Path("decisions.jsonl")], [Path("record.csv")])
    world = ReplayWorld.calibrated(recorded)                  # once
    today = world.in_force
    other = world.candidate(config)                           # `config` is a `maitred.config.Config`
    runs = replay_all(world, [(today, 42), (other, 42)], jobs=None)
    figures(runs[1], world, ["interactive.ttft_p99_ms"])

Runs with one seed have the same arrivals, the same draws of answers that are not known, and the same error of the latency model
(common random numbers), so their differences by request are those of the rules.
"""

from __future__ import annotations
