"""The books that a world keeps beside the log of decisions blame nobody who does right."""

from __future__ import annotations

import msgspec

from maitred.admission import Admission, AdmissionConfig, ReleaseReason, Ticket
from maitred.core.contracts import FleetLoad, InstanceLoad
from maitred.core.decisions import DecisionLog
from maitred.core.units import Micros
from maitred.testing.world.books import Books

ONE_AFTER_THE_OTHER = {"saturation_detector": "concurrency", "max_concurrency": 1, "fairness_policy": "round-robin"}
CONFIG = msgspec.convert({"mode": "flow-control", "flow_control": ONE_AFTER_THE_OTHER}, AdmissionConfig)


class TwoTenants:
    """Tenants a and b take turns at an engine that runs one request."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.num_running = 0
        self.core = Admission(CONFIG, {"m": 8}, self.load, DecisionLog(self.lines.append))

    def load(self, pool: str = "m", now: Micros = 0) -> FleetLoad:
        return FleetLoad((InstanceLoad(self.num_running, 0, self.num_running, 0.0, 0),))

    def submit(self, number: int, tenant: str, now: Micros) -> None:
        decisions = self.core.submit(Ticket(number, "m", tenant=tenant, client_id=f"{tenant}{number}"), now, self.load())
        self.num_running += decisions[0].action.value == "admit"

    def release(self, number: int, now: Micros) -> list[int]:
        """End a request, and return those that enter for it."""
        self.num_running -= 1
        entered = [d.subject for d in self.core.release(number, ReleaseReason.DRAINED, now) if d.action.value == "admit"]
        self.num_running += len(entered)
        return entered

    def blamed(self) -> list[str]:
        return list(Books({}, lambda since, until: False).read(self.lines))


def test_tenants_go_on_taking_turns_behind_a_reload() -> None:
    t = TwoTenants()
    t.submit(0, "a", 10)
    t.submit(1, "a", 20)
    t.submit(2, "b", 30)
    t.core.reconfigure(CONFIG, 40)
    assert t.release(0, 50) == [2]
    assert t.blamed() == []
    swapped = [line.replace(b'"subject":2,', b'"subject":1,') if b'"at":50' in line else line for line in t.lines]
    assert list(Books({}, lambda since, until: False).read(swapped)) == [
        "a1 enters before b2, and its tenant had the last turn as well"
    ]


def test_tenants_take_turns_from_the_first_one_again_at_a_model_that_has_come_back() -> None:
    t = TwoTenants()
    t.submit(0, "a", 10)
    assert t.release(0, 20) == []
    t.core.forget("m", 30)
    t.core.resize("m", 8, 40)
    t.num_running = 1  # of somebody else
    t.submit(1, "a", 50)
    t.submit(2, "b", 60)
    t.num_running = 0
    assert t.core.resize("m", 9, 70)[0].subject == 1
    assert t.blamed() == []


def test_who_has_two_turns_is_blamed() -> None:
    t = TwoTenants()
    t.submit(0, "a", 10)
    t.submit(1, "a", 20)
    t.submit(2, "b", 30)
    assert t.release(0, 50) == [2]
    swapped = [line.replace(b'"subject":2,', b'"subject":1,') if b'"at":50' in line else line for line in t.lines]
    assert list(Books({}, lambda since, until: False).read(swapped)) == [
        "a1 enters before b2, and its tenant had the last turn as well"
    ]
