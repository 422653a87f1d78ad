"""`parse_engine_reading`, which scripts outside the project import from here."""

from maitred.scheduler.engines.readings import parse_engine_reading

__all__ = ["parse_engine_reading"]
