"""The rules of backends that come and go: timelines with numbers worked out by hand, and properties."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.core.units import SECOND
from maitred.scheduler.backend_set import BackendSet, Change, ChangeKind, DiscoveryConfig, Presence

FILE, DNS, ADMIN = "file", "dns", "admin"


def said(changes: Sequence[Change]) -> list[str]:
    return [f"{change.kind} {change.url} {change.at / SECOND:g}" for change in changes]


def at(secs: float) -> int:
    return round(secs * SECOND)


def test_the_example_of_the_docstring() -> None:
    core = BackendSet(DiscoveryConfig())
    assert said(core.listed(FILE, "abc", 0)) == ["add a 0", "add b 0", "add c 0"]
    assert said(core.listed(FILE, "ab", at(10))) == ["drain c 10"]
    assert said(core.listed(FILE, "abc", at(12))) == ["return c 12"]
    assert said(core.listed(FILE, "ab", at(20))) == ["drain c 20"]
    assert said(core.listed(FILE, "abc", at(21))) == []
    assert core.presence("c") is Presence.HELD
    assert said(core.advance(at(28))) == ["return c 26"]
    assert said(core.listed(FILE, "", at(30))) == []
    assert core.doubted() == {FILE: 0}
    assert said(core.listed(FILE, "", at(59))) == []
    assert said(core.advance(at(61))) == ["drain a 60", "drain b 60", "drain c 60"]
    assert said(core.advance(at(100))) == ["forget a 90", "forget b 90", "forget c 90"]
    assert list(core) == []


def test_a_backend_goes_when_no_source_lists_it_any_more() -> None:
    core = BackendSet(DiscoveryConfig())
    core.listed(FILE, "ab", 0)
    core.listed(ADMIN, "b", 0, is_certain=True)
    assert core.sources_of("b") == [FILE, ADMIN]
    assert said(core.listed(FILE, "a", at(1))) == []
    assert said(core.listed(ADMIN, "", at(2), is_certain=True)) == ["drain b 2"]


def test_a_source_that_fails_keeps_its_list_and_a_doubt_begins_anew() -> None:
    core = BackendSet(DiscoveryConfig(doubt_secs=30))
    core.listed(FILE, "ab", 0)
    assert core.failed(FILE, at(1000)) == []
    core.listed(FILE, "", at(1010))
    core.failed(FILE, at(1020))
    assert core.doubted() == {}
    assert said(core.advance(at(2000))) == []
    core.listed(FILE, "", at(2000))
    assert said(core.advance(at(2030))) == ["drain a 2030", "drain b 2030"]


def test_what_is_more_in_a_doubted_list_is_used_at_once() -> None:
    core = BackendSet(DiscoveryConfig(doubt_secs=30))
    core.listed(FILE, "ab", 0)
    assert said(core.listed(FILE, "cd", at(5))) == ["add c 5", "add d 5"]
    assert said(core.listed(FILE, "cd", at(35))) == ["drain a 35", "drain b 35"]


@pytest.mark.parametrize(
    ("share", "left", "is_doubted"), [(0.5, "ab", False), (0.5, "a", True), (1.0, "", False), (0.0, "abc", True)]
)
def test_the_share_of_a_list_that_is_doubted(share: float, left: str, is_doubted: bool) -> None:
    core = BackendSet(DiscoveryConfig(doubted_share=share))
    core.listed(FILE, "abcd", 0)
    core.listed(FILE, left, at(1))
    assert (FILE in core.doubted()) is is_doubted


def test_the_hold_doubles_with_each_going_and_ends_with_the_window() -> None:
    core = BackendSet(DiscoveryConfig(hold_secs=5, max_hold_secs=15, flap_window_secs=300))
    core.listed(FILE, "abc", 0)
    now, holds = 100.0, []
    for _ in range(5):
        core.listed(FILE, "ab", at(now))
        core.listed(FILE, "abc", at(now + 1))
        due = core.next_deadline()
        holds.append(0.0 if due is None else due / SECOND - now - 1)
        core.advance(at(now + 20))
        now += 20
    assert holds == [0, 5, 10, 15, 15]
    core.listed(FILE, "ab", at(1000))
    assert said(core.listed(FILE, "abc", at(1001))) == ["return c 1001"]


def test_nothing_is_held_while_nothing_else_is_in_use() -> None:
    core = BackendSet(DiscoveryConfig(doubted_share=1))
    core.listed(FILE, "a", 0)
    for second in (10, 20, 30):
        core.listed(FILE, "", at(second))
        assert said(core.listed(FILE, "a", at(second + 1))) == [f"return a {second + 1}"]


def test_one_that_was_forgotten_and_flaps_is_held_before_it_is_added() -> None:
    core = BackendSet(DiscoveryConfig(forget_secs=1))
    core.listed(FILE, "abc", 0)
    for second in (10, 20):
        core.listed(FILE, "ab", at(second))
        last = core.listed(FILE, "abc", at(second + 5))
    assert said(last) == ["forget c 21"]
    assert said(core.advance(at(31))) == ["add c 30"]


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ValueError, match=r"doubted_share must be from 0 to 1"):
        DiscoveryConfig(doubted_share=1.5)
    with pytest.raises(ValueError, match=r"hold_secs must be from 0"):
        DiscoveryConfig(hold_secs=-1)


URLS = st.frozensets(st.sampled_from("abcdef"))
STEPS = st.lists(
    st.tuples(st.sampled_from([FILE, DNS, ADMIN]), st.one_of(st.none(), URLS), st.integers(0, 40 * SECOND)), max_size=40
)
CONFIGS = st.builds(
    DiscoveryConfig,
    forget_secs=st.sampled_from([0.0, 5.0, 30.0]),
    hold_secs=st.sampled_from([0.0, 5.0]),
    doubt_secs=st.sampled_from([0.0, 30.0]),
    doubted_share=st.sampled_from([0.0, 0.5, 1.0]),
)


class Fleet:
    """What a driver does: raises AssertionError for a decision that cannot be carried out."""

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.draining: set[str] = set()

    def do(self, changes: Sequence[Change]) -> None:
        for change in changes:
            url = change.url
            match change.kind:
                case ChangeKind.ADD:
                    assert url not in self.used | self.draining
                    self.used.add(url)
                case ChangeKind.DRAIN:
                    self.used.remove(url)
                    self.draining.add(url)
                case ChangeKind.RETURN:
                    self.draining.remove(url)
                    self.used.add(url)
                case ChangeKind.FORGET:
                    self.draining.remove(url)


@given(CONFIGS, STEPS)
def test_decisions_fit_each_other_and_a_fleet_never_empties_by_failures(config: DiscoveryConfig, steps: list) -> None:  # type: ignore[type-arg]
    core, fleet, now = BackendSet(config), Fleet(), 0
    for source, urls, span in steps:
        now += span
        if urls is None:
            due = core.next_deadline()
            fleet.do(core.failed(source, now))
            before = set(fleet.used)
            fleet.do(core.failed(source, now))
            assert fleet.used == before  # a failure by itself changes nothing
            assert due is None or due > now or core.next_deadline() != due
        else:
            fleet.do(core.listed(source, urls, now, is_certain=source == ADMIN))
            for url in urls:
                assert core.presence(url) in (Presence.IN_USE, Presence.HELD)
        core.check()
        assert fleet.used == {url for url in core if core.presence(url) is Presence.IN_USE}
    listed = {url for source in (FILE, DNS, ADMIN) for url in core.list_of(source)}
    doubts = core.doubted()
    fleet.do(core.advance(now + 10_000 * SECOND))
    core.check()
    if not doubts:
        assert fleet.used == listed  # what flaps is used in the end, what no source lists is not
    assert not fleet.draining
    assert core.next_deadline() is None


@given(CONFIGS, STEPS)
def test_a_late_timer_changes_no_decision(config: DiscoveryConfig, steps: list) -> None:  # type: ignore[type-arg]
    punctual, late, now = BackendSet(config), BackendSet(config), 0
    first, second = list[Change](), list[Change]()
    for source, urls, span in steps:
        while (due := punctual.next_deadline()) is not None and due <= now + span:
            first += punctual.advance(due)
        now += span
        for core, decided in ((punctual, first), (late, second)):
            decided.extend(core.failed(source, now) if urls is None else core.listed(source, sorted(urls), now))
    assert msgspec.to_builtins(first) == msgspec.to_builtins(second)
