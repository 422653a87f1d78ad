"""`parse_reported_load`, which scripts outside the project import from here."""

from maitred.scheduler.engines.polling import parse_reported_load

__all__ = ["parse_reported_load"]
