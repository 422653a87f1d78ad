"""What waits in an instance between two looks at it."""

from __future__ import annotations

from maitred.admission import QueueEstimate


def test_what_has_come_and_gone_since_the_look_counts() -> None:
    queue = QueueEstimate()
    queue.look(waiting=5, running=16, in_flight=21)
    assert [queue.waiting(in_flight) for in_flight in (21, 19, 16, 10, 23)] == [5, 3, 0, 0, 7]


def test_others_that_use_the_instance_stay_in_its_queue() -> None:
    queue = QueueEstimate()
    queue.look(waiting=5, running=16, in_flight=2)
    assert queue.waiting(0) == 3


def test_free_places_are_taken_first_once_it_is_known_how_many_there_are() -> None:
    queue = QueueEstimate()
    queue.look(waiting=0, running=10, in_flight=10)
    assert queue.waiting(99) == 0, "nothing was ever seen to wait"
    queue.look(waiting=1, running=16, in_flight=17)
    queue.look(waiting=0, running=10, in_flight=10)
    assert [queue.waiting(in_flight) for in_flight in (8, 16, 18)] == [0, 0, 2]
    queue.forget()
    assert queue.waiting(99) == 0
