"""session-affinity: where a session stays, and what happens when its instance is gone."""

from __future__ import annotations

from routing_views import Driver, View, request, router

from maitred.core.contracts import Choice


def test_a_session_stays_where_its_first_request_was_placed() -> None:
    driver = Driver(router("session-affinity"), [View(0), View(1), View(2)])
    placed = {name: driver.send(sent=request(program=name)) for name in ("a", "b", "c")}
    assert sorted(placed.values()) == [0, 1, 2]
    for name in ("c", "a", "a", "a", "b"):
        assert driver.send(sent=request(program=name)) == placed[name]


def test_a_program_is_a_closer_bond_than_a_routing_key_and_that_than_a_tenant() -> None:
    driver = Driver(router("session-affinity(round-robin)"), [View(0), View(1), View(2), View(3)])
    assert driver.send(sent=request(program="p", key="k", tenant="t")) == 0
    assert driver.send(sent=request(key="k", tenant="t")) == 1
    assert driver.send(sent=request(tenant="t")) == 2
    assert driver.send(sent=request(tenant="p")) == 3, "a tenant of the same name is another session"
    assert driver.send(sent=request(program="p", key="x")) == 0
    assert driver.send(sent=request(key="k", tenant="x")) == 1


def test_requests_without_a_session_are_placed_by_the_inner_policy() -> None:
    driver = Driver(router("session-affinity(round-robin)"), [View(0), View(1)])
    assert [driver.send() for _ in range(4)] == [0, 1, 0, 1]


def test_a_session_whose_instance_is_gone_moves_and_does_not_go_back() -> None:
    both = [View(0), View(1)]
    driver = Driver(router("session-affinity(round-robin)"), both)
    sent = request(program="a")
    assert driver.send(sent=sent) == 0
    assert driver.send([both[1]], sent) == 1
    assert [driver.send(sent=sent) for _ in range(3)] == [1, 1, 1]


def test_each_model_of_a_session_has_its_own_instance() -> None:
    views = [View(0), View(1)]
    driver = Driver(router("session-affinity"), views)
    for _ in range(3):
        assert driver.send(views[:1], request(program="a", model="x")) == 0
        assert driver.send(views[1:], request(program="a", model="y")) == 1


def test_the_session_that_was_idle_for_longest_is_forgotten_first() -> None:
    driver = Driver(router("session-affinity(round-robin, sessions=2)"), [View(0), View(1), View(2), View(3)])
    a, b, c = (request(program=name) for name in "abc")
    assert [driver.send(sent=sent) for sent in (a, b, a, c)] == [0, 1, 0, 2]
    assert driver.send(sent=a) == 0
    assert driver.send(sent=b) == 3, "b was idle for longest when c came"


def test_the_inner_policy_knows_the_load_of_all_requests() -> None:
    driver = Driver(router("session-affinity(least-loaded)"), [View(0), View(1)])
    assert [driver.send(sent=request(program="a")) for _ in range(3)] == [0, 0, 0]
    assert driver.send(sent=request(program="b")) == 1
    for number in (1, 2, 3):
        driver.end(number)
    assert driver.send(sent=request(program="c")) == 0


def test_a_session_that_had_to_move_is_not_idle() -> None:
    views = [View(0), View(1), View(2)]
    made = router("session-affinity(least-loaded, sessions=2)")
    a, b, c = (request(program=name) for name in "abc")
    first = made.choose(a, views, now=0).instance
    made.choose(b, views, now=0)
    moved = made.choose(a, [view for view in views if view.index != first], now=0).instance
    made.choose(c, views, now=0)

    assert made.choose(a, views, now=0) == Choice(moved, "same_session"), "it was b that was idle for longest"


def test_a_session_moves_from_an_overloaded_instance_to_the_least_loaded_and_stays_there() -> None:
    views = [View(0), View(1, 1), View(2, 2)]
    driver = Driver(router("session-affinity(round-robin)"), views)
    sent = request(program="a")
    assert [driver.send(sent=sent) for _ in range(6)] == [0, 0, 0, 0, 0, 0]
    assert [driver.send(sent=sent) for _ in range(2)] == [1, 1]
    for number in range(1, 7):
        driver.end(number)
    assert driver.send(sent=sent) == 1


def test_a_session_without_a_bound_stays_whatever_the_load() -> None:
    driver = Driver(router("session-affinity(balance_abs_threshold=inf)"), [View(0), View(1)])
    assert [driver.send(sent=request(tenant="t")) for _ in range(50)] == [0] * 50


def test_sessions_by_routing_key_alone() -> None:
    driver = Driver(router("session-affinity(round-robin, by=routing-key)"), [View(0), View(1), View(2)])
    sent = [request(program="p", key="k"), request(program="p"), request(key="k", tenant="t"), request(tenant="t")]
    assert [driver.send(sent=each) for each in sent] == [0, 1, 0, 2]
