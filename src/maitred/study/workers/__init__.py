"""Workers: who makes the runs of a study.

    workers.py   the contract, and who is hired for which wish
    here.py      this process, one run after another
    local.py     processes on this machine
    cluster.py   a Ray cluster

Whoever does it, the answers are the same; only the order in which they come differs. A worker that dies takes no run with it:
what it had is given to another one, a few times at most, for a run may be what kills it.
"""

from __future__ import annotations

from maitred.study.workers.workers import CompletedTask, LostWorkersError, TaskFunction, Workers, available_cores, make_workers

__all__ = ["CompletedTask", "LostWorkersError", "TaskFunction", "Workers", "available_cores", "make_workers"]
