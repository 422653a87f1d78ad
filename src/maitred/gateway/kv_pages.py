"""`parse_kv_report`, which scripts outside the project import from here."""

from maitred.scheduler.engines.kv_pages import parse_kv_report

__all__ = ["parse_kv_report"]
