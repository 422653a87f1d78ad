"""Where each waiting request stands in the prefix cache, kept up to date as blocks come and go.

A waiting request is filed at the last block of its cached prefix and under the block it wants next:

    chain     A  B  C | D  E            A, B and C are cached, so it stands at C and wants D
    cached    A  B  C      E            (that E is there as well, is of no use before D is)

If D is published, those who want D move on, as far as the cache goes. If B is evicted, those who stand at B or beyond move
back to A. Nobody else is looked at.

News is only noted when it comes and believed at the next `catch_up`, which asks the cache how things are by then: in the middle
of a pass, when admitting one evicts what another would have found, nobody moves. Looking never changes the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from maitred.contracts import PrefixView
from maitred.kv import chain_for
from maitred.queueing.duplicates import Duplicates
from maitred.queueing.places import Place, PlaceTree, Waiter
from maitred.request import RequestId
from maitred.seq import Seq


class PrefixIndex:
    """The waiting requests of one instance, and where they stand: a `PrefixWatcher`."""

    def __init__(self, cache: PrefixView, check: int, deprioritize: int) -> None:
        """`check` and `deprioritize`: see `Duplicates`, in tokens. Raises ValueError unless `deprioritize` is at least 1."""
        self._cache = cache
        self._block_size = cache.block_size
        self.places = PlaceTree()
        self._wanted: dict[int, dict[Waiter, None]] = {}
        """Who wants this block next."""
        self._duplicates = Duplicates(check, deprioritize, self._block_size, self._flipped)
        self._news: dict[int, None] = {}
        self._gone: list[RequestId] = []
        self.moved: dict[Waiter, None] = {}
        """Who came, moved, was held back or let go, or left, since the queue last cleared this."""
        cache.watch(self)

    def enter(self, seq: Seq) -> Waiter:
        """It waits from now on."""
        waiter = Waiter(seq, chain_for(seq, self._cache), self._block_size)
        self._duplicates.over(seq.request.id)
        self.places.stand(waiter, self._cache.cached(waiter.chain))
        self._moved([waiter])
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """It waits no more."""
        self._duplicates.leave(waiter)
        self._step_aside(waiter)

    def admit(self, waiter: Waiter) -> None:
        """It waits no more: its prompt is going to be computed."""
        shared = self._duplicates.admit(waiter)
        if shared is not None:
            self._news[shared] = None  # it may be cached already
        self._step_aside(waiter)

    def over(self, request_id: RequestId) -> None:
        """It will compute nothing (any more)."""
        self._gone.append(request_id)

    def published(self, key: int) -> None:
        if key in self._wanted or key in self.places or key in self._duplicates:
            self._news[key] = None

    def evicted(self, key: int) -> None:
        if key in self._wanted or key in self.places:
            self._news[key] = None

    def catch_up(self) -> None:
        """Move those whom the news since the last time concerns."""
        self._cache.holds(0)  # a cache may evict lazily, and tells when somebody looks
        gone, self._gone = self._gone, []
        for request_id in gone:
            self._duplicates.over(request_id)
        if not self._news:
            return
        news, self._news = self._news, {}
        lost = []
        for key in news:
            if not self._cache.holds(key):
                lost.append(key)
                continue
            self._duplicates.published(key)
            if key in self._wanted:
                self._advance(key)
        self._lose(lost)

    def _lose(self, keys: Iterable[int]) -> None:
        """These are not cached any more."""
        lost: dict[Place, set[int]] = {}
        for key in keys:
            if key in self.places:
                lost.setdefault(self.places.home(key), set()).add(key)
        for place in sorted(lost, key=lambda place: place.start):
            if place.weight:  # else those who stood there have fallen back further already
                self._fall_back(next(key for key in place.keys if key in lost[place]))

    def _advance(self, key: int) -> None:
        """`key` is cached now. Those who want it move on, and have mostly the same way to go."""
        alike: dict[int, list[Waiter]] = {}  # by the last block that they find
        end, depth = key, 0
        for waiter in self._wanted.pop(key):
            chain = waiter.chain
            known = 0 < depth <= len(chain) and chain[depth - 1] == end
            depth = self._reach(chain, depth if known else waiter.depth + 1)
            end = chain[depth - 1]
            alike.setdefault(end, []).append(waiter)
        for end, waiters in alike.items():
            self.places.move_on(waiters, end)
            self._moved(waiters)

    def _fall_back(self, key: int) -> None:
        """`key` is not cached any more. Those who stand there or beyond fall back to the block before it."""
        waiters = list(self.places.home(key).beyond())
        for waiter in waiters:
            self._give_up(waiter)
        self.places.fall_back(key)
        self._moved(waiters)

    def _reach(self, chain: Sequence[int], depth: int) -> int:
        """How many blocks of `chain` are cached without a gap, if `depth` are."""
        holds, end = self._cache.holds, len(chain)
        while depth < end and holds(chain[depth]):
            depth += 1
        return depth

    def _moved(self, waiters: Iterable[Waiter]) -> None:
        """They stand where they have not stood before."""
        wanted, moved = self._wanted, self.moved
        for waiter in waiters:
            if waiter.depth < len(waiter.chain):
                wanted.setdefault(waiter.chain[waiter.depth], {})[waiter] = None
            moved[waiter] = None
            self._duplicates.stands(waiter)

    def _give_up(self, waiter: Waiter) -> None:
        """It wants nothing."""
        if waiter.depth < len(waiter.chain):
            key = waiter.chain[waiter.depth]
            wanting = self._wanted[key]
            del wanting[waiter]
            if not wanting:
                del self._wanted[key]

    def _step_aside(self, waiter: Waiter) -> None:
        self._give_up(waiter)
        self.places.step_aside(waiter)
        self.moved[waiter] = None

    def _flipped(self, waiter: Waiter) -> None:
        self.moved[waiter] = None
        self.places.mark(waiter.place)
