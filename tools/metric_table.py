"""The table of all metrics of the gateway, as a gateway makes them in each mode."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from maitred.admission import AdmissionConfig
from maitred.gateway import GatewayConfig
from maitred.gateway.app import Gateway
from maitred.gateway.observe.metric_rows import label_names
from maitred.programs import ProgramsConfig
from maitred.routing import RoutingConfig
from maitred.shadow import ShadowRules


def metric_table() -> list[list[str]]:
    """Return the rows of the table, the heading first: each metric once, in the order of its name."""
    rows = {name: [f"`{name}`", kind, labels, text] for name, kind, labels, text in _metrics()}
    return [["metric", "type", "labels", "what"], *(rows[name] for name in sorted(rows))]


def _metrics() -> Iterator[tuple[str, str, str, str]]:
    config = GatewayConfig(backends=("http://127.0.0.1:9001",))
    for mode in ("priority", "legacy"):
        admission = msgspec.convert({"mode": mode}, AdmissionConfig)
        programs = msgspec.convert({"mode": "tr"}, ProgramsConfig)
        shadow = ShadowRules(name="", admission=admission, routing=RoutingConfig(), programs=programs)
        gateway = Gateway(config, admission, programs=programs, shadow=shadow)
        for family in gateway.metric_families():
            labels = label_names(family)
            total = "_total" if family.type == "counter" else ""
            yield family.name + total, family.type, ", ".join(f"`{label}`" for label in labels), family.documentation
