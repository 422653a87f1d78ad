"""Which request is sent when: scenarios without a clock."""

from maitred.core.request import Request
from maitred.emulator.clients.schedule import SendSchedule
from maitred.workload import Job, closed_loop


def job(number, at_ms):
    return Job(Request(id=number, arrival=at_ms * 1000, prompt_tokens=10), 3)


def ids(jobs):
    return [each.request.id for each in jobs]


def test_an_open_loop_waits_for_no_answer():
    schedule = SendSchedule([job(0, 0), job(1, 10), job(2, 10), job(3, 50)])
    assert schedule.next_due() == 0
    assert ids(schedule.take_due(0)) == [0]
    assert schedule.next_due() == 10_000
    assert ids(schedule.take_due(30_000)) == [1, 2]
    assert schedule.num_in_flight == 3
    assert ids(schedule.take_due(49_999)) == []
    assert ids(schedule.take_due(50_000)) == [3]
    assert schedule.next_due() is None
    assert not schedule.is_over


def test_a_limit_holds_requests_back_in_their_order():
    schedule = SendSchedule([job(0, 0), job(1, 10), job(2, 20)], max_concurrency=1)
    first = schedule.take_due(0)
    assert ids(first) == [0]
    assert schedule.take_due(20_000) == []
    assert schedule.on_end(first[0].request, True, 3, 35_000)
    (second,) = schedule.take_due(35_000)
    assert (second.request.id, second.request.arrival) == (1, 10_000)  # its latency counts from the plan
    schedule.on_end(second.request, True, 3, 40_000)
    (third,) = schedule.take_due(40_000)
    assert schedule.on_end(third.request, True, 3, 41_000)  # the driver must look: all is over
    assert schedule.is_over


def test_what_follows_from_an_answer_is_planned_when_it_ends():
    schedule = SendSchedule(closed_loop(2, 3, think_time_ms=5.0, input_tokens=10, output_tokens=3))
    began = schedule.take_due(5_000)  # users begin within their think time
    assert len(began) == 2
    assert schedule.next_due() is None
    assert schedule.on_end(began[1].request, True, 3, 100_000)
    assert schedule.next_due() == 105_000
    (third,) = schedule.take_due(105_000)
    for each in (began[0], third):
        schedule.on_end(each.request, True, 3, 200_000)
    assert schedule.is_over


def test_after_a_stop_nothing_is_sent_and_what_is_open_still_ends():
    schedule = SendSchedule([job(0, 0), job(1, 10)], max_concurrency=1)
    (first,) = schedule.take_due(20_000)
    schedule.stop()
    assert not schedule.is_over
    schedule.on_end(first.request, False, 0, 30_000)
    assert schedule.is_over
    assert schedule.take_due(40_000) == []
