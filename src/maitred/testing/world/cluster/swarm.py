"""A swarm of scenarios with several gateways: each follows from its seed, which turns some kinds of faults off."""

from __future__ import annotations

from random import Random
from typing import Final

from maitred.testing.world.behaviours import ClientPlan
from maitred.testing.world.cluster.aimed import AIMED_FAULTS
from maitred.testing.world.cluster.faults import FAULTS, OF_ENGINES
from maitred.testing.world.cluster.scenario import ClusterScenario
from maitred.testing.world.swarm import draw_link

_KINDS: Final = ("stream", "stream", "polite", "polite", "sdk", "fickle", "pipeline")
"""Kinds of clients beside floods; some come more often."""
_COMMON_FAULTS: Final = (
    *("reset link", "cut link", "pause gateway", "gateway loses power", "pause scheduler", "kill scheduler", "cut from store"),
    *(*AIMED_FAULTS, *AIMED_FAULTS),
)
"""Kinds of faults that come more often: those of which a slot may be used twice."""
_CLASSES: Final = ("interactive", "default", "bulk", "bulk")


_CROWDED_EVERY: Final = 4
_QUIET: Final = 8
"""Each seed that leaves 7 when it is divided by this has few clients, so that faults meet requests on their way, and none."""


def draw_cluster(seed: int) -> ClusterScenario:
    """Return the scenario of a seed."""
    random = Random(f"{seed}/cluster")
    if seed % _CROWDED_EVERY == 0:
        return _draw_crowded(seed, random)
    num_engines = random.choice((1, 1, 1, 2))
    slots = random.choice(("configured", "configured", "reported", "reported", "learned"))
    return ClusterScenario(
        seed=seed,
        num_gateways=random.choice((2, 3, 3)),
        num_schedulers=random.choice((1, 2, 2, 2)),
        finds_by_store=random.random() < 0.5,
        degraded=random.choice(("wait", "wait", "closed")),
        degraded_after_secs=random.choice((2.0, 10.0)),
        clients=_draw_clients(random) if seed % _QUIET != _QUIET - 1 else _draw_quiet_clients(random),
        num_engines=num_engines,
        engine_limits=tuple(random.choice((2, 3, 4, 8)) for _ in range(num_engines)),
        step_ms=random.choice((50.0, 100.0, 200.0)),
        hides_slots=slots == "learned",
        slots_per_backend=random.choice((2, 4, 6)) if slots == "configured" else None,
        retries_per_sec=random.choice((10.0, 0.1)),
        reserved_floor=random.choice((None, None, 1)),
        tenant_slots=random.choice((None, None, None, 2)),
        queue_secs=random.choice((5.0, 10.0, 20.0)),
        policy=random.choice(("least-loaded", "power-of-two", "round-robin")),
        poll_secs=random.choice((1.0, 5.0)),
        keepalive_secs=random.choice((0.0, 0.0, 1.0)),
        faults=_draw_faults(random),
        fault_secs=20.0,
        fault_pace=random.choice((1.0, 2.0, 3.0)),
        link=draw_link(random, random.choice((200, 2_000, 10_000, 10_000))),
    )


def _draw_crowded(seed: int, random: Random) -> ClusterScenario:
    """Return a small scenario in which a slot that is used twice is seen soon: all that is asked is streamed, so the slots of a
    gateway that is gone are known to be free, and taken at once; and few kinds of faults leave the time for that."""
    slots = random.choice((2, 4))
    kinds = ("stream", "stream", "stream", "stream", "sdk")
    clients = [
        _draw_client(random, random.choice(kinds), random.choice(("bulk", "bulk", "interactive")), 8, 40)
        for _ in range(random.randint(8, 12))
    ]
    faults = random.sample(
        [*AIMED_FAULTS, *AIMED_FAULTS, *_COMMON_FAULTS, "kill gateway", "restart gateway"], random.choice((1, 1, 2))
    )
    return ClusterScenario(
        seed=seed,
        num_gateways=random.choice((2, 2, 3)),
        num_schedulers=random.choice((1, 2)),
        finds_by_store=random.random() < 0.5,
        clients=tuple(clients),
        num_engines=1,
        engine_limits=(slots,),
        step_ms=50.0,
        slots_per_backend=slots,
        poll_secs=random.choice((1.0, 5.0)),
        faults=tuple(sorted({*faults})),
        fault_secs=20.0,
        fault_pace=random.choice((2.0, 3.0)),
        link=draw_link(random, random.choice((200, 2_000, 10_000))),
    )


def _draw_clients(random: Random) -> tuple[ClientPlan, ...]:
    """Return clients that want more slots than there are, all the time: streams that hold some for long, so that they do when
    a leader or a gateway is lost; a crowd that always waits, with short answers, so that slots come back often; floods; chats
    that may take slots from these."""
    streams = [_draw_client(random, "stream", "bulk", 3, 100) for _ in range(random.randint(2, 4))]
    # Of streams it is known that they are at an engine, so the slots of a gateway that is gone come back soon.
    kind = random.choice(("polite", "stream"))
    crowd = [_draw_client(random, kind, "bulk", 10, 10) for _ in range(random.randint(4, 8))]
    floods = [_draw_client(random, "flood", "bulk", random.choice((6, 10)), 10) for _ in range(random.randint(0, 2))]
    chats = [_draw_client(random, random.choice(_KINDS), "interactive", 12, 10) for _ in range(random.randint(1, 3))]
    others = [_draw_client(random, random.choice(_KINDS), random.choice(_CLASSES), 6, 40) for _ in range(random.randint(1, 3))]
    return (*streams, *crowd, *floods, *chats, *others)


def _draw_quiet_clients(random: Random) -> tuple[ClientPlan, ...]:
    """Return clients that send slowly, or seldom."""
    kinds = ("dribble", "dribble", random.choice(_KINDS))
    return tuple(ClientPlan(kind, 8, random.choice(_CLASSES), max_tokens=10, think_secs=3.0) for kind in kinds)


def _draw_client(random: Random, kind: str, priority: str, num_requests: int, max_tokens: int) -> ClientPlan:
    return ClientPlan(
        kind=kind,
        num_requests=num_requests,
        priority=priority,
        tenant=random.choice(("acme", "acme", "beta")),
        max_tokens=max_tokens,
        think_secs=random.choice((0.01, 0.1, 0.3)),
    )


def _draw_faults(random: Random) -> tuple[str, ...]:
    """Return kinds of faults. In half of the seeds engines are well: then nothing excuses a stream that breaks."""
    kinds = [*sorted(FAULTS.keys() - OF_ENGINES), *_COMMON_FAULTS]
    of_cluster = set(random.sample(kinds, random.choice((0, 3, 4, 5, 6))))
    others = random.sample(sorted(OF_ENGINES), random.choice((0, 0, 1)))
    return tuple(sorted([*of_cluster, *others]))
