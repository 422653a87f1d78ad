"""Faults that can be planted in the link, the scheduler's host and the election, for the test that the world of gateways and
schedulers finds each (`test_world_cluster`).

`python tests/testing/cluster_mutants.py` says for each which seeds of the swarm, from 1 on, find it, and after how many events.
`FOUND_BY` has a seed for each that is cheap, and `FOUND_IN` a scenario for each of the others.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any, Final

import msgspec
import pytest

from maitred.scheduler.link import gateway_request
from maitred.scheduler.link.door import Door
from maitred.scheduler.link.events import Preempted
from maitred.scheduler.link.gateway_end import GatewayEnd
from maitred.scheduler.link.gateway_request import GatewayRequest, RequestEvent
from maitred.scheduler.link.gateway_request import GatewayRequestState as State
from maitred.scheduler.link.learning import Learning
from maitred.scheduler.link.linked_admission import UNKNOWN_MODEL, LinkedAdmission
from maitred.scheduler.link.messages import BeatAnswer, Reject
from maitred.scheduler.link.scheduler_end import SchedulerEnd
from maitred.scheduler.link.terms import Standing
from maitred.scheduler.link.unaccounted import Unaccounted
from maitred.scheduler.sharing.elections.elector import Elector
from maitred.scheduler.sharing.elections.redis_election import RedisElection
from maitred.scheduler.sharing.link_client import LinkClient
from maitred.testing.world.cluster.simulation import play_cluster
from maitred.testing.world.cluster.store import Store
from maitred.testing.world.cluster.swarm import draw_cluster

MAX_EVENTS: Final = 100_000
_ENOUGH: Final = 2
"""Seeds that find a fault, after which no further ones are played."""
_FOREVER: Final = 10**18
Patch = Callable[[pytest.MonkeyPatch], None]


def _wrap(owner: type, name: str, wrapper: Callable[[Any], Any]) -> Patch:
    """Return what replaces a method by what `wrapper` makes of it."""
    return lambda patches: patches.setattr(owner, name, wrapper(getattr(owner, name)))


def _all(*patches: Patch) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        for each in patches:
            each(monkeypatch)

    return patch


def _transition(state: State, event: RequestEvent, following: State) -> Patch:
    """Return what adds a transition to the table of requests at gateways."""
    return lambda patches: patches.setitem(gateway_request.TRANSITIONS, (state, event), following)


def _ends_streams(lost: Any) -> Any:
    def mutant(self: Any, transport: Any) -> None:
        lost(self, transport)
        for request in [*self.end.requests]:
            if request.state is State.STREAMING:
                self.on_event(Preempted(request.number))

    return mutant


def _forgets_waiting(say_hello: Any) -> Any:
    class Catching:
        def __init__(self, channel: Any) -> None:
            self._channel = channel

        def say(self, hello: Any) -> None:
            named = [live for live in hello.requests if live.standing is not Standing.WAITING]
            self._channel.say(msgspec.structs.replace(hello, requests=named))

    return lambda self, channel, now: say_hello(self, Catching(channel), now)


def _returns(value: object) -> Callable[[Any], Any]:
    return lambda method: lambda self, *given, **named: value


def _counts_from_reception(take: Any) -> Any:
    def mutant(self: Any, message: Any, now: int) -> Any:
        events = take(self, message, now)
        if isinstance(message, BeatAnswer) and self.lease.until is not None:
            self.lease.prolong(now)
        return events

    return mutant


def _counts_from_any_message(take: Any) -> Any:
    def mutant(self: Any, message: Any, now: int) -> Any:
        if self.lease.until is not None:
            self.lease.prolong(now)
        return take(self, message, now)

    return mutant


def _looks_at_the_clock_afterwards(feed: Any) -> Any:
    def mutant(self: Any, data: bytes, now: int) -> Any:
        channel, events = self._channel, list[object]()
        if channel is None:
            return events
        messages = channel.feed(data)
        if channel.is_open and self.state.name == "GREETING":
            self._say_hello(channel, now)
        for message in messages:
            if self._channel is channel:
                events += self._take(message, now)
        return [*events, *self.advance(now)]

    return mutant


def _frees_at_once(abandon: Any) -> Any:
    def mutant(self: Any, gateway: Any, now: int) -> None:
        abandon(self, gateway, now)
        for request in [*gateway.requests.values()]:
            self.end(request, "failed", now)

    return mutant


def _trusts_any_reading(on_reading: Any) -> Any:
    return lambda self, backend, running, asked_at, now: on_reading(self, backend, running, _FOREVER, now)


def _forgets_streams(say_hello: Any) -> Any:
    class Catching:
        def __init__(self, channel: Any) -> None:
            self._channel = channel

        def say(self, hello: Any) -> None:
            named = [live for live in hello.requests if live.standing is not Standing.STREAMING]
            self._channel.say(msgspec.structs.replace(hello, requests=named))

    return lambda self, channel, now: say_hello(self, Catching(channel), now)


def _keeps_the_attempt(ask_again: Any) -> Any:
    def mutant(self: Any) -> bool:
        asks = bool(ask_again(self))
        self.attempt -= asks
        return asks

    return mutant


def _loses_releases(release: Any) -> Any:
    def mutant(self: Any, number: int, *given: Any) -> None:
        if number % 7 == 0:
            self._requests.pop(number, None)
        else:
            release(self, number, *given)

    return mutant


def _has_no_age(introduce: Any) -> Any:
    return lambda self, now: msgspec.structs.replace(introduce(self, now), age=0)


def _ignores_the_floor(campaign: Any) -> Any:
    async def mutant(self: Any, candidate: Any, floor: int) -> Any:
        self._highest_epoch = 0
        return await campaign(self, candidate, 0)

    return mutant


def _learns_no_gateways(lead: Any) -> Any:
    def mutant(self: Any, epoch: int, until: int, gateways: Any, *others: Any) -> None:
        lead(self, epoch, until, (), *others)

    return mutant


def _leads_for_ever(lead: Any) -> Any:
    def mutant(self: Any, epoch: int, until: int, *others: Any) -> None:
        lead(self, epoch, _FOREVER, *others)

    return mutant


def _leads_alone(lead: Any) -> Any:
    return lambda self, *given, alone_from=0: lead(self, *given[:6])


def _asks_only_the_clock(may_send: Any) -> Any:
    return lambda self, number, now: now < self.lease.send_until


def _keeps_ages(let_in: Any) -> Any:
    def mutant(self: Any, link: Any, now: int) -> Any:
        early = [message for message, _ in link.early]
        return early if let_in(self, link, now) else []

    return mutant


def _rejects_unknown_models(reconcile: Any) -> Any:
    def mutant(self: Any, gateway: Any, named: Any, now: int) -> Any:
        known = [live for live in named if self._pool_of(live.terms.model) in self._models]
        for live in named:
            if live not in known:
                self._say(gateway, Reject(live.request, live.attempt, UNKNOWN_MODEL))
        return reconcile(self, gateway, known, now)

    return mutant


def _does_nothing(method: Any) -> Any:
    return lambda self, *given: None


def _reads_no_strangers(on_reading: Any) -> Any:
    return lambda self, backend, asked_at: self._unread.discard(backend)


MUTANTS: Final[dict[str, Patch]] = {
    "an old epoch grants": _all(
        _wrap(SchedulerEnd, "lead", _leads_for_ever),
        _wrap(SchedulerEnd, "renew", _does_nothing),
        _wrap(GatewayEnd, "_is_old", _returns(False)),
    ),
    "a lease counts from reception": _all(
        _wrap(GatewayEnd, "_take", _counts_from_reception), _wrap(GatewayEnd, "feed", _looks_at_the_clock_afterwards)
    ),
    "a push prolongs a lease": _all(
        _wrap(GatewayEnd, "_take", _counts_from_any_message), _wrap(GatewayEnd, "feed", _looks_at_the_clock_afterwards)
    ),
    "a leader's lease counts for ever": _all(
        _wrap(SchedulerEnd, "lead", _leads_for_ever), _wrap(SchedulerEnd, "renew", _does_nothing)
    ),
    "slots of a gateway that is gone are free at once": _wrap(LinkedAdmission, "abandon", _frees_at_once),
    "slots of a gateway that is gone are lost": _wrap(Unaccounted, "orphans", _returns([])),
    "a reading is trusted before the lease is over": _wrap(Unaccounted, "on_reading", _trusts_any_reading),
    "a hello forgets who waits": _wrap(GatewayEnd, "_say_hello", _forgets_waiting),
    "streams end with their link": _wrap(LinkClient, "lost", _ends_streams),
    "all are taken to be at an engine": _wrap(Unaccounted, "_was_there", _returns(True)),
    "a hello forgets streams": _wrap(GatewayEnd, "_say_hello", _forgets_streams),
    "nothing is learned": _wrap(Learning, "is_over", _returns(True)),
    "named gateways are not waited for": _wrap(SchedulerEnd, "lead", _learns_no_gateways),
    "strangers are not counted": _wrap(Learning, "on_reading", _reads_no_strangers),
    "a victim streams": _transition(State.VICTIM, RequestEvent.FIRST_BYTE, State.STREAMING),
    "a stream is stopped": _transition(State.STREAMING, RequestEvent.PREEMPT, State.VICTIM),
    "an attempt is kept": _wrap(GatewayRequest, "ask_again", _keeps_the_attempt),
    "a release is lost": _wrap(GatewayEnd, "release", _loses_releases),
    "requests have no age": _wrap(GatewayRequest, "introduce", _has_no_age),
    "an epoch begins anew with the store": _all(
        _wrap(RedisElection, "campaign", _ignores_the_floor), _wrap(Store, "time", _returns(0))
    ),
    "a first term grants at once": _wrap(SchedulerEnd, "lead", _leads_alone),
    "a grant is used after the lease": _wrap(GatewayEnd, "may_send", _returns(True)),
    "a lease that begins anew renews old grants": _wrap(GatewayEnd, "may_send", _asks_only_the_clock),
    "ages begin at the door": _wrap(Door, "let_in", _keeps_ages),
    "models that are not known yet have no requests": _wrap(LinkedAdmission, "reconcile", _rejects_unknown_models),
    "gateways are welcomed before they are named": _wrap(Door, "must_wait", _returns(False)),
    "a leader takes no part any more": _wrap(Elector, "_renew", _returns(None)),
}


FOUND_BY: Final[dict[str, tuple[int, ...]]] = {
    "an old epoch grants": (17, 14),
    "a leader's lease counts for ever": (17, 14),
    "a lease counts from reception": (52, 64),
    "a push prolongs a lease": (52, 64),
    "a grant is used after the lease": (16,),
    "slots of a gateway that is gone are free at once": (52,),
    "slots of a gateway that is gone are lost": (20,),
    "a reading is trusted before the lease is over": (24,),
    "a hello forgets streams": (3, 1),
    "nothing is learned": (25,),
    "named gateways are not waited for": (16,),
    "requests have no age": (10, 1),
    "an epoch begins anew with the store": (62,),
    "streams end with their link": (29, 10),
    "a stream is stopped": (1,),
    "a leader takes no part any more": (1, 2),
}
"""Seeds of the swarm that find each in some 25,000 events at most; further ones, as any change may change what a seed plays."""

FOUND_IN: Final[dict[str, tuple[str, str]]] = {
    "a victim streams": ("test_link", "test_a_request_is_preempted_for_one_of_another_gateway"),
    "all are taken to be at an engine": (
        "test_gone_gateways",
        "test_a_reading_counts_those_that_were_certainly_there_as_soon_as_their_gateways_have_said_all_before",
    ),
    "strangers are not counted": (
        "test_gone_gateways",
        "test_a_lease_that_passes_ends_learning_and_the_engines_tell_what_the_missing_hold",
    ),
    "a hello forgets who waits": ("test_gone_gateways", "test_order_is_restored_by_age_whoever_says_hello_first"),
    "a first term grants at once": (
        "test_stale_grants",
        "test_the_leader_of_a_first_term_grants_nothing_while_another_one_may_lead",
    ),
    "a lease that begins anew renews old grants": (
        "test_stale_grants",
        "test_a_request_is_not_sent_on_a_grant_that_is_older_than_the_lease",
    ),
    "ages begin at the door": ("test_stale_grants", "test_requests_lose_no_age_while_their_gateway_waits_to_be_named"),
    "gateways are welcomed before they are named": (
        "test_stale_grants",
        "test_requests_lose_no_age_while_their_gateway_waits_to_be_named",
    ),
    "models that are not known yet have no requests": (
        "test_stale_grants",
        "test_slots_of_a_model_that_no_backend_has_told_of_yet_are_held",
    ),
    "an attempt is kept": ("test_link", "test_a_victim_that_is_tried_again_waits_as_another_attempt"),
    "a release is lost": ("test_link", "test_a_request_is_granted_and_its_slot_goes_to_the_next_one_of_another_gateway"),
}
"""Scenarios of `tests/link` that find the others. Of these, the swarm finds those of who waits, of an attempt and of a release,
in 40,000 to 170,000 events of one seed, and no other in its first 18 seeds: those need several things within milliseconds."""


def search(name: str) -> tuple[str, list[tuple[int, int, str]], int]:
    """Play the swarm from seed 1 on with a fault, for `MAX_EVENTS` events. Return the seeds that find it, each with its events
    and what is violated; and how many seeds were played."""
    logging.disable(logging.CRITICAL)
    found, num_events, seed = list[tuple[int, int, str]](), 0, 0
    with pytest.MonkeyPatch.context() as patches:
        MUTANTS[name](patches)
        while num_events < MAX_EVENTS:
            seed += 1
            outcome = play_cluster(draw_cluster(seed), stops_at_violation=True)
            num_events += outcome.num_events
            if outcome.violations:
                found.append((seed, outcome.num_events, outcome.violations[0]))
                if len(found) == _ENOUGH:
                    break
    return name, found, seed


def main() -> int:
    """Search for all, and return 1 if one is not found."""
    names = sys.argv[1:] or list(MUTANTS)
    is_missed = False
    with get_context("fork").Pool(2) as pool:
        for name, found, num_seeds in pool.imap(search, names):
            is_missed |= not found
            seeds = ", ".join(f"{seed} ({count:,})" for seed, count, _ in found)
            sys.stdout.write(f"{name}: {seeds or 'not found'} of {num_seeds} seeds\n")
            for _, _, violation in found[:1]:
                sys.stdout.write(f"    {violation[:200]}\n")
            sys.stdout.flush()
    return int(is_missed)


if __name__ == "__main__":
    sys.exit(main())
