"""An election by a Lease, with the API server of the tests' own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest
from kube_server import KubeServer

from maitred.core.units import SECOND
from maitred.scheduler.interface import ElectionCandidate
from maitred.scheduler.kube_clients import open_kube
from maitred.scheduler.sharing.elections.election import ElectionError
from maitred.scheduler.sharing.elections.kube_election import KubeElection
from maitred.wire.clock import Clock

LEASES = "/apis/coordination.k8s.io/v1/namespaces/serving/leases"
A, B = ElectionCandidate("a", "10.0.0.1:7070"), ElectionCandidate("b", "10.0.0.2:7070")
UseServer = Callable[[KubeServer], str]


def test_one_leads_and_the_next_one_has_a_later_epoch(use_server: UseServer) -> None:
    async def scenario() -> None:
        server, now = KubeServer(), [0]
        await server.start()
        account = use_server(server)
        clock = Clock(monotonic_ns=lambda: now[0] * 1000, time_ns=lambda: 0)

        def election(seed: int) -> KubeElection:
            return KubeElection(lambda: open_kube(account), "", "fleet", 2 * SECOND, Random(seed).random().hex, clock)

        first, second = election(1), election(2)
        assert await first.leader() is None
        term = await first.campaign(A, 7)
        assert term is not None
        assert term.epoch == 8
        assert await second.campaign(B, 0) is None
        assert await second.leader() == A
        # Renewed within a lease, it stays the leader however long that takes.
        for _ in range(3):
            now[0] += SECOND
            assert await first.renew([("gateway", "boot")])
            assert await second.campaign(B, 0) is None
        assert server.objects[LEASES]["fleet"]["spec"]["leaseTransitions"] == 8
        # Somebody writes a label: that is no other leader.
        server.put(LEASES, server.objects[LEASES]["fleet"])
        assert await first.renew([("gateway", "boot")])
        assert await second.campaign(B, 0) is None
        now[0] += 2 * SECOND - 1
        assert await second.campaign(B, 0) is None
        now[0] += 1
        taken = await second.campaign(B, 0)
        assert taken is not None
        assert (taken.epoch, taken.gateways) == (9, [("gateway", "boot")])
        assert not await first.renew([])
        await second.resign()
        assert await second.leader() is None
        again = await first.campaign(A, 0)  # at once, since nobody leads
        assert again is not None
        assert again.epoch == 10
        for one in (first, second):
            await one.close()
        await server.stop()

    asyncio.run(scenario())


def test_of_two_that_write_at_once_one_leads(use_server: UseServer) -> None:
    async def scenario() -> None:
        server = KubeServer()
        await server.start()
        account = use_server(server)
        made = [KubeElection(lambda: open_kube(account), "", "fleet", SECOND, lambda n=n: str(n), Clock()) for n in range(4)]
        terms = await asyncio.gather(*(one.campaign(A, 0) for one in made))
        assert sum(term is not None for term in terms) == 1
        for one in made:
            await one.close()
        await server.stop()

    asyncio.run(scenario())


def test_an_api_that_fails_is_an_error_of_the_election(use_server: UseServer) -> None:
    async def scenario() -> None:
        server = KubeServer()
        server.status = 500
        await server.start()
        account = use_server(server)
        election = KubeElection(lambda: open_kube(account), "", "fleet", SECOND, lambda: "1", Clock())
        for call in (election.campaign(A, 0), election.leader()):
            with pytest.raises(ElectionError, match="answers 500: the server is not well"):
                await call
        await election.close()
        await server.stop()

    asyncio.run(scenario())
