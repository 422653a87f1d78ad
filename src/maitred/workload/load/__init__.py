"""A load: what arrives, said by keys. These are the flags of `maitred simulate` for workloads, and the section `workload` of a
study; whoever reads them says how the user spells them (`naming`), so that a mistake is named as it was made.

    keys.py       Load: the keys
    naming.py     how they are spelled where they are said
    mixed.py      classes and tenants by share
    recorded.py   a trace
    synthetic.py  a specification, one stream of requests, a group of users
    begun.py      any of them, as jobs
"""

from __future__ import annotations

from maitred.workload.load.begun import described, jobs_of, on_its_own
from maitred.workload.load.keys import Load
from maitred.workload.load.naming import Naming, as_flag, as_key
from maitred.workload.load.recorded import opened
from maitred.workload.load.synthetic import specification

__all__ = ["Load", "Naming", "as_flag", "as_key", "described", "jobs_of", "on_its_own", "opened", "specification"]
