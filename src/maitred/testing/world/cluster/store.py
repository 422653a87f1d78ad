"""The store of an election in memory: what Redis is to schedulers, and what can go wrong with it.

    asked      over a network with delays: a question may be lost on its way, and so may its answer, when it has taken effect
    paused     questions wait, and take effect when it goes on, also those whose askers have given up
    down       it refuses; when it is back, it has what it had, or nothing
    cut off    from one machine (`Network.cut_ways`): its questions and answers are lost

`StoreClient` stands for redis-py. Of Lua it knows the three scripts of `RedisElection`.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

from maitred.core.units import SECOND, Micros
from maitred.scheduler.sharing.elections import redis_election
from maitred.testing.world.loop import VirtualLoop
from maitred.testing.world.machine import EPOCH_NS
from maitred.testing.world.network import Network

STORE: Final = "10.0.4.1"
"""The address of the store."""
_TIMEOUT_SECS: Final = 1.0
"""How long a client waits for an answer before it tries once more."""
_TRIES: Final = 2
Answer: TypeAlias = object


class Store:
    """The store."""

    def __init__(self, loop: VirtualLoop, network: Network) -> None:
        self.loop, self.network = loop, network
        self.is_up = True
        self.is_paused = False
        self.loss_share = 0.0
        """Share of questions that are lost, and of answers."""
        self.slow_secs = 0.0
        """Seconds for which a message is under way at most, beside the delay of the network."""
        self.random = loop.draws.of("store")
        self._values: dict[str, tuple[bytes, Micros | None]] = {}
        """Each value, with the instant at which it is gone, µs, or None."""
        self._waiting: deque[Callable[[], None]] = deque()

    def kill(self) -> None:
        """End its process. Whatever it was asked and has not answered is lost."""
        self.is_up = self.is_paused = False
        self._waiting.clear()

    def start(self, *, keeps: bool) -> None:
        """Start it, with all that it had if it `keeps` that."""
        self.is_up = True
        if not keeps:
            self._values.clear()

    def resume(self) -> None:
        """Answer what was asked while it was paused."""
        self.is_paused = False
        while self._waiting:
            self._waiting.popleft()()

    def take(self, act: Callable[[], None]) -> None:
        """Do what is asked, now or when it goes on."""
        if self.is_paused:
            self._waiting.append(act)
        else:
            act()

    def delay(self) -> float:
        """Return for how many seconds the next message is under way."""
        return self.network.link.delay() + self.random.random() * self.slow_secs

    def loses(self, source: str, target: str) -> bool:
        """Return whether the next message between two addresses is lost."""
        return (source, target) in self.network.cut_ways or self.random.random() < self.loss_share

    # What scripts do.

    def time(self) -> int:
        """Return its time of day, in seconds."""
        return EPOCH_NS // 10**9 + self.loop.micros // SECOND

    def get(self, key: str) -> bytes | None:
        """Return a value, or None if there is none any more."""
        value, until = self._values.get(key, (None, None))
        return value if until is None or self.loop.micros < until else None

    def ttl(self, key: str) -> Micros:
        """Return after what time a value is gone that is there, µs; -1,000 if it stays."""
        until = self._values[key][1]
        return -1_000 if until is None else until - self.loop.micros

    def set(self, key: str, value: bytes, ttl: Micros | None = None) -> None:
        """Set a value, which is gone after `ttl` (µs)."""
        self._values[key] = value, None if ttl is None else self.loop.micros + ttl

    def delete(self, key: str) -> None:
        """Remove a value."""
        self._values.pop(key, None)


def _campaign(store: Store, keys: Sequence[str], values: Sequence[bytes]) -> Answer:
    leader, epoch_key, gateways = keys
    record, ttl, floor = values
    known = store.get(epoch_key)
    epoch = max(int(known or 0), int(floor))
    if store.get(leader) is not None:
        return [0, b"", epoch, store.ttl(leader) // 1_000, 0]
    epoch = max(epoch + 1, store.time())
    store.set(epoch_key, b"%d" % epoch)
    store.set(leader, record, int(ttl) * 1_000)
    return [epoch, store.get(gateways) or b"", epoch, 0, int(known is None)]


def _renew(store: Store, keys: Sequence[str], values: Sequence[bytes]) -> Answer:
    leader, gateways = keys
    record, ttl, named = values
    if store.get(leader) != record:
        return 0
    store.set(leader, record, int(ttl) * 1_000)
    store.set(gateways, named)
    return 1


def _resign(store: Store, keys: Sequence[str], values: Sequence[bytes]) -> Answer:
    if store.get(keys[0]) == values[0]:
        store.delete(keys[0])
    return 1


SCRIPTS: Final[Mapping[str, Callable[[Store, Sequence[str], Sequence[bytes]], Answer]]] = {
    redis_election.CAMPAIGN: _campaign,
    redis_election.RENEW: _renew,
    redis_election.RESIGN: _resign,
}
"""What each script of the election does to a store."""


class StoreClient:
    """A client of the store, on one machine: of redis-py what `RedisElection` uses."""

    def __init__(self, store: Store, address: str) -> None:
        """`address` is that of the machine."""
        self.is_gone = False
        """Whether the process that asks has been killed: what it has asked takes effect, and nobody hears the answer."""
        self._store, self._address = store, address

    async def eval(self, script: str, num_keys: int, *given: object) -> Answer:
        """Run a script. Raises OSError."""
        keys, values = given[:num_keys], given[num_keys:]
        act, told = SCRIPTS[script], [value if isinstance(value, bytes) else str(value).encode() for value in values]
        return await self._ask(lambda: act(self._store, [str(key) for key in keys], told))

    async def get(self, key: str) -> Answer:
        """Return a value, or None. Raises OSError."""
        return await self._ask(lambda: self._store.get(key))

    async def aclose(self) -> None:
        """Do nothing."""

    async def _ask(self, act: Callable[[], Answer]) -> Answer:
        for attempt in range(1, _TRIES + 1):
            try:
                async with asyncio.timeout(_TIMEOUT_SECS):
                    return await self._try(act)
            except OSError:
                if attempt == _TRIES:
                    raise
        raise AssertionError

    async def _try(self, act: Callable[[], Answer]) -> Answer:
        store, loop = self._store, self._store.loop
        answered: asyncio.Future[Callable[[], Answer]] = loop.create_future()
        of_process, elsewhere = contextvars.copy_context(), contextvars.Context()

        def settle(answer: Callable[[], Answer]) -> None:
            if not answered.done() and not self.is_gone:
                answered.set_result(answer)

        def answer_with(answer: Callable[[], Answer]) -> None:
            if not store.loses(STORE, self._address):
                loop.call_later(store.delay(), settle, answer, context=of_process)

        def arrive() -> None:
            if store.is_up:
                store.take(lambda: answer_with(partial(_same, act())))
            else:
                answer_with(_refuse)

        if not store.loses(self._address, STORE):
            loop.call_later(store.delay(), arrive, context=elsewhere)  # whether the process that asks goes on or not
        return (await answered)()


def _same(answer: Answer) -> Answer:
    return answer


def _refuse() -> Answer:
    raise ConnectionRefusedError("connection refused")
