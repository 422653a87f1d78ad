"""In what order? The wait queue of one instance.

A policy is registered under the name that users type (`SCHEDULERS`) and makes the queue of one instance. Where its order is
a key that time does not change, it is a `KeyPolicy` and only says the key; its queue is a heap, never sorted anew.
"""

from __future__ import annotations

from maitred.queueing import fcfs as _fcfs
from maitred.queueing import sjf as _sjf
from maitred.queueing.policy import SCHEDULERS

__all__ = ["SCHEDULERS"]

del _fcfs, _sjf
