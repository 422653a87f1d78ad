"""What a report says of the KV memory of an engine, as agent programs read it: of the configured type of engine alone, and with
the capacities of SGLang, which are on another page (`server_info`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from maitred.scheduler.engines.metrics import parse_engine_report
from maitred.scheduler.engines.report import EngineReport, KvMemory, sum_if_all

BackendType: TypeAlias = Literal["auto", "vllm", "sglang", "skyrl"]
"""The kind of an engine; `auto` goes by what the page is."""


def kv_report(report: EngineReport | None, backend_type: BackendType, info_capacities: Sequence[int]) -> EngineReport | None:
    """Return `report` if it is of an engine of this type, with the capacities that /server_info says of SGLang
    (`parse_info_capacities`); or None. These alone make a report, too: SGLang may have no metrics."""
    if report is not None and report.engine != "sglang":
        return report if backend_type in ("auto", report.engine) else None
    if backend_type not in ("auto", "sglang") or (report is None and not info_capacities):
        return None
    of_all, least = sum_if_all(info_capacities), min(info_capacities, default=None)
    found = report or EngineReport(engine="sglang", memories=(KvMemory(),))
    memories = [msgspec.structs.replace(memory, capacity=of_all if memory.rank is None else least) for memory in found.memories]
    return msgspec.structs.replace(found, memories=tuple(memories))


def parse_kv_report(
    page: bytes | bytearray | None, backend_type: BackendType, info_capacities: Sequence[int] = ()
) -> EngineReport | None:
    """Read the report on KV memory in `page`, the answer to /metrics (`kv_report`). `page` is None if there is none."""
    return kv_report(None if page is None else parse_engine_report(page), backend_type, info_capacities)
