"""Flow control decides as the naive model does, for any inputs; and its log runs again byte for byte."""

from __future__ import annotations

from typing import Any

from flow_model import NOBODY_SAYS, FlowModel, Waiter
from flow_timeline import FlowTimeline
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.admission import ReleaseReason
from maitred.core.decisions import DecisionLog
from maitred.core.slo_classes import SLO_PRIORITIES
from maitred.replay import replay

CLASSES = tuple(SLO_PRIORITIES)
LIMITS = st.fixed_dictionaries(
    {
        "saturation_detector": st.sampled_from(["concurrency", "utilization", "never"]),
        "max_concurrency": st.integers(1, 3),
        "queue_depth_threshold": st.just(4.0),
        "usage_limit_threshold": st.sampled_from([1.0, 0.5]),
        "dispatch_order": st.sampled_from(["priority", "fifo", "slo-deadline"]),
        "fairness_policy": st.sampled_from(["global-strict", "round-robin"]),
        "dispatch": st.sampled_from(["all", "one"]),
        "dispatch_tick_interval_us": st.sampled_from([1000, 3000]),
        "max_gateway_queue_depth": st.sampled_from([2, 4]),
        "per_band_capacity": st.sampled_from([0, 2]),
        "queue_shedding": st.booleans(),
        "request_ttl_us": st.sampled_from([0, 5000]),
    }
)
INPUTS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "submit", "submit", "release", "advance", "queued"]),
        st.sampled_from([0, 400, 1000]),
        st.integers(0, 59),
    ),
    min_size=30,
    max_size=50,
)


class CoreAndModel:
    """The core and the model, given the same inputs. Two instances show requests as soon as they are in flight; an input
    of its own says how many wait in them."""

    def __init__(self, limits: dict[str, Any]) -> None:
        self.core = FlowTimeline(instances=2, **limits)
        self.model = FlowModel(limits, instances=2)
        self.now = 0
        self.count = 0

    def act(self, what: str, later: int, n: int) -> None:
        self.now += later
        ms = self.now / 1000
        if later:  # what falls due at this instant comes after the input
            assert self.core.advance(ms - 0.001) == self.model.advance(self.now - 1)
        match what:
            case "submit":
                slo, tenant = CLASSES[n % 5], "xyz"[n // 5 % 3]
                target = (None, 2, 9, 30)[n // 15]
                name, self.count = self.count, self.count + 1
                waiter = Waiter(name, SLO_PRIORITIES[slo], tenant, NOBODY_SAYS if target is None else target * 1000, self.now)
                assert self.core.submit(ms, str(name), slo, tenant, target) == self.model.submit(waiter, self.now)
            case "release" if self.count:
                name = n % self.count
                gone = self.core.release(ms, str(name), ReleaseReason.DRAINED)
                assert gone == self.released(name)
            case "queued":
                assert self.core.advance(ms) == self.model.advance(self.now)
                self.core.waiting = [2 + n % 3] * 2
                self.model.queued = 2 + n % 3
            case _:
                assert self.core.advance(ms) == self.model.advance(self.now)
        soon, wanted = self.core.core.next_deadline(), self.model.due()
        assert wanted is None or (soon is not None and soon <= wanted)

    def released(self, name: int) -> list[str]:
        here = name in self.model.in_flight or any(w.name == name for w in self.model.waiting)
        return self.model.release(name) if here else []


@settings(max_examples=100)
@given(LIMITS, INPUTS)
def test_flow_control_decides_as_the_naive_model_does(limits: dict[str, Any], inputs: list[tuple[str, int, int]]) -> None:
    both = CoreAndModel(limits)
    for given_input in inputs:
        both.act(*given_input)

    again: list[bytes] = []
    replay(both.core.log, DecisionLog(again.append))
    assert again == both.core.log
