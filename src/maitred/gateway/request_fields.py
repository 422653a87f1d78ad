"""`RoutingHintReader`, which scripts outside the project import from here."""

from maitred.gateway.bodies.request_fields import RoutingHintReader

__all__ = ["RoutingHintReader"]
