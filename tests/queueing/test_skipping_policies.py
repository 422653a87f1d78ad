"""No policy may depend on how many steps were skipped: the events are those of one step after the other, to the microsecond."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_samples import ALL, drained, queue, seq, started

from maitred.testing.queueing import check_skipping


@pytest.mark.parametrize("spelling", ALL)
@settings(max_examples=6)
@given(seed=st.integers(0, 100_000), seqs=st.sampled_from([2, 4, 256]), blocks=st.sampled_from([14, 20, 40]))
def test_skipping_changes_nothing(spelling: str, seed: int, seqs: int, blocks: int) -> None:
    check_skipping(spelling, seed, seqs, blocks)


@pytest.mark.parametrize(("output_weight", "seed"), [(0.3, 157), (0.3, 155), (0.3, 670), (0.1, 1182), (1 / 3, 595)])
def test_weights_that_no_binary_fraction_holds_part_no_equal_tenants(output_weight: float, seed: int) -> None:
    """The counters of vtc are exact: in floats two equal tenants would be parted by how often their tokens were settled."""
    check_skipping(f"vtc(slo(window=0.001), output_weight={output_weight})", seed, 256, 40)
    check_skipping(f"vtc(sjf, output_weight={output_weight}, slack=0.7)", seed, 256, 40)


@pytest.mark.parametrize("spelling", ["by-priority(sglang(random))", "vtc(sglang(random))", "vtc(sglang(random), slack=9)"])
def test_asking_how_long_the_head_stays_changes_no_order(spelling: str) -> None:
    """In a step without room the head is not asked for, but an instance that skips steps asks how long the head stays."""
    orders = []
    for asking in (False, True):
        waiting = queue(spelling)
        for number in range(20):
            waiting.add(seq(number), 0)
        for step in range(4):
            started(waiting, step, step_index=step)
            if asking:
                waiting.next_order_change(step)
        orders.append(drained(waiting))
    assert orders[0] == orders[1] != sorted(orders[0])
