"""The name of `maitred.scheduler.engines.kv_pages` that scripts outside the project import from here."""

from maitred.scheduler.engines.kv_pages import parse_kv_report

__all__ = ["parse_kv_report"]
