"""Requests counted as clients see them, on a timeline in seconds."""

from hypothesis import given
from hypothesis import strategies as st

from maitred.core.request import PriorityClass
from maitred.emulator.clients import ClientOutcome, ClientStats, percentile_ms

CHAT, BULK = PriorityClass.INTERACTIVE, PriorityClass.BULK


def test_a_request_waits_then_is_in_flight_then_has_ended():
    stats = ClientStats((CHAT, BULK))
    sent = stats.on_send(CHAT, 10.0)
    of = stats.classes[CHAT]
    assert (of.num_sent, of.num_waiting, of.num_in_flight) == (1, 1, 0)
    sent.on_token(10.25)
    sent.on_token(10.75)
    assert (of.num_sent, of.num_waiting, of.num_in_flight) == (1, 0, 1)
    sent.on_end(ClientOutcome.COMPLETED, 11.0)
    assert (of.num_sent, of.num_waiting, of.num_in_flight) == (1, 0, 0)
    summary = of.outcomes()
    assert (summary.completed, summary.ttft_p50_ms, summary.ttft_p99_ms, summary.e2e_p50_ms) == (1, 250.0, 250.0, 1000.0)
    assert stats.classes[BULK].outcomes().ttft_p50_ms is None


def test_times_are_of_completed_requests_alone():
    stats = ClientStats()
    for outcome in ClientOutcome:
        sent = stats.on_send(BULK, 0.0)
        sent.on_token(1.0 if outcome is ClientOutcome.COMPLETED else 5.0)
        sent.on_end(outcome, 9.0)
    summary = stats.classes[BULK].outcomes()
    ended = (summary.completed, summary.rejected, summary.preempted, summary.failed, summary.cancelled)
    assert ended == (1, 1, 1, 1, 1)
    assert (summary.ttft_p99_ms, summary.e2e_p50_ms) == (1000.0, 9000.0)


def test_percentiles_are_values_that_occurred():
    seconds = [0.4, 0.1, 0.3, 0.2]
    assert [percentile_ms(seconds, percent) for percent in (0, 25, 50, 51, 99, 100)] == [100, 100, 200, 300, 400, 400]


@given(st.lists(st.tuples(st.sampled_from([CHAT, BULK]), st.booleans(), st.sampled_from([None, *ClientOutcome]))))
def test_whatever_was_sent_is_waiting_in_flight_or_ended_once(requests):
    stats = ClientStats()
    for priority_class, token, outcome in requests:
        sent = stats.on_send(priority_class, 0.0)
        if token:
            sent.on_token(1.0)
        if outcome is not None:
            sent.on_end(outcome, 2.0)
        for of in stats.classes.values():
            assert of.num_sent == of.num_waiting + of.num_in_flight + sum(of.num_ended.values())
    assert stats.num_sent == len(requests)
