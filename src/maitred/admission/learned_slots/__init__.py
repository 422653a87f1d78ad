"""Learned slots: find and follow the number of requests that an engine runs at once.

signals.py          what the controller is told, and what it decides
controller.py       SlotController: its inputs, and the bounds of its answers
limit_search.py     the limit: what runs while something waits; trust and probes
kv_limit.py         the bound by KV memory
shared_engine.py    slots at an engine that others use, too
without_metrics.py  looks made of our own streams
model_shares.py     slots of one engine, shared among the models that it serves
own_requests.py     OwnRequests: what a driver counts of the requests that it has sent
inputs.py           the inputs as data, as a log has them
"""

from __future__ import annotations

from maitred.admission.learned_slots.controller import (
    BUSY_INTERVAL,
    LEAST_LEARNED,
    MOST_LEARNED,
    START_SLOTS,
    TICK_INTERVAL,
    SlotController,
)
from maitred.admission.learned_slots.own_requests import OwnRequest, OwnRequests
from maitred.admission.learned_slots.signals import (
    NO_DEMAND,
    EngineReading,
    LearnedLimit,
    OwnLoad,
    PoolDemand,
    SlotDecision,
    SlotReason,
    SlotState,
)

__all__ = [
    "BUSY_INTERVAL",
    "LEAST_LEARNED",
    "MOST_LEARNED",
    "NO_DEMAND",
    "START_SLOTS",
    "TICK_INTERVAL",
    "EngineReading",
    "LearnedLimit",
    "OwnLoad",
    "OwnRequest",
    "OwnRequests",
    "PoolDemand",
    "SlotController",
    "SlotDecision",
    "SlotReason",
    "SlotState",
]
