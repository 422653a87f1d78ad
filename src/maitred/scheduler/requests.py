"""A request as the scheduler sees it. Compiled (`tools/compile.py`)."""

from __future__ import annotations

from maitred.core.request import Request
from maitred.scheduler.backends.served_models import ServedModel
from maitred.scheduler.drivers.cancel_scope import CancelScope
from maitred.scheduler.drivers.programs import MemoryLease
from maitred.scheduler.failures import FailedAttempts


class ScheduledRequest(CancelScope):
    """What decisions about a request that is being served go by. If it is cancelled, its client has left."""

    request: Request
    served: ServedModel
    """Its model, or all models if it names none."""
    asks_each: bool
    """Whether it asks for what one backend has stored, so that each may be asked in turn."""
    memory_lease: MemoryLease | None
    """Its place in KV memory, or the one that it waits for; None without one."""
    failed: FailedAttempts | None
    """The attempts that have failed, or None if none has."""
    chosen_because = ""
    """Why its backend was chosen, in a word of the router, if one has chosen it here."""
    may_be_elsewhere = False
    """Whether another backend is asked if this one answers 404."""
