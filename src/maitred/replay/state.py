"""What a core looks like at an instant, as people read it beside a difference and in the story of a request."""

from __future__ import annotations

from typing import Any

from maitred.admission import Admission
from maitred.admission.pool.pool_views import PoolView
from maitred.admission.terms.config import MAX_SLOTS
from maitred.programs import Programs
from maitred.routing import inputs as routing


def pool_state(view: PoolView) -> dict[str, Any]:
    """Return one pool: slots, and by class those that are held, what is reserved and held back, and what waits."""
    classes = {
        c.label: {
            "in_flight": each.in_flight,
            "waiting": each.waiting,
            "reserved": each.reserved,
            "held_back": each.held,
            "queue_size": each.queue_size,
        }
        for c, each in view.classes.items()
    }
    slots = None if view.capacity >= MAX_SLOTS else view.capacity
    return {"slots": slots, "in_flight": view.in_flight, "waiting": view.waiting, "classes": classes}


def state_of(core: Any, given: Any) -> dict[str, Any]:
    """Return the part of the state of `core` that an input concerns, after it was applied."""
    if isinstance(core, Admission):
        named = getattr(given, "pool", None)
        names = [str(named)] if named in core.pool_names else core.pool_names
        return {name or "all models": pool_state(core.view(name)) for name in names}
    if isinstance(core, Programs):
        return {"programs": len(core.programs), "waiting": core.num_waiting, "backends": len(core.backends)}
    if isinstance(given, routing.Choose):
        return {f"instance {seen.index}": {"in_flight": seen.in_flight, "waiting": seen.waiting} for seen in given.instances}
    return {}
