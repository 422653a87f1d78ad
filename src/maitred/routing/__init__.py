"""Which instance?

A router decides among the instances it is shown; whoever drives it leaves out those that cannot serve the request. Routers
are registered under the name that users type (`ROUTERS`).
"""

from __future__ import annotations

from maitred.routing import least_loaded as _least_loaded
from maitred.routing import round_robin as _round_robin
from maitred.routing.policy import ROUTERS, RoutingConfig

__all__ = ["ROUTERS", "RoutingConfig"]

del _least_loaded, _round_robin
