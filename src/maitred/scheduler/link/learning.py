"""What a scheduler may grant that has just begun to lead: it does not know yet what its gateways hold.

It learns until every gateway that the store names has said hello, or until one lease has passed: by then no gateway starts
anything that the scheduler before it had granted. Meanwhile it grants only what is certainly free. The scheduler before it has
granted no more than there is. So, of what the gateways hold that have said hello, a slot that one gives back is free, whatever
the others hold:

    slots while learning = slots that were seen to be held (those that are given back stay among them)

*Example.* 8 slots, gateways a and b. a says hello and holds 3: there are 3 slots, all in use. One of a's requests ends, and the
next one of a's that waits has its slot, though b has not said hello. When b has, there are 8.

Where the limits of engines are learned, the one before may have lent more to a probe than the limit that gateways bring. Then
as many as it had granted, and no more, may be held until the learning is over.

That holds if nobody else leads. Where the election has lost its record, the scheduler before this one may lead until its lease
is over, so nothing at all is granted before (`alone_from`).

If the lease passes without some of the gateways, what these still have at the engines is unknown. An engine that is asked then
tells how much that can be at most (`unaccounted.strangers`), and while that is something the election names these gateways
further (`SlotSettling.unheard`), for the next leader. One that does not answer is taken to have none, one lease later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from maitred.core.units import Micros
from maitred.scheduler.link.gateway_books import GatewayId


class Learning:
    """What is still to be learned by a scheduler that leads."""

    def __init__(
        self,
        gateways: Collection[GatewayId],
        backends: Collection[int],
        lease: Micros,
        now: Micros,
        alone_from: Micros = 0,
    ) -> None:
        """`gateways` are those that may hold slots, as the store names them. UNKNOWN_GATEWAY among them is never heard. Before
        `alone_from`, µs, another scheduler may lead."""
        self.unheard = set(gateways)
        self.seen: Counter[str] = Counter()
        """Slots that were seen to be held, by model."""
        self._unread = set(backends)
        """Backends that have not answered since the lease has passed."""
        self._lease_over_at = now + lease
        self._ends_at = max(now + 2 * lease, alone_from)
        self._alone_from = alone_from if alone_from > now else None

    def is_over(self, now: Micros) -> bool:
        """Return whether there is nothing more to learn, or no use in waiting for it."""
        if self._alone_from is not None and now < self._alone_from:
            return False
        return not self.unheard or (not self._unread and now >= self._lease_over_at) or now >= self._ends_at

    def is_alone_now(self, now: Micros) -> bool:
        """Return True once: when no other scheduler leads any more that could until now."""
        if self._alone_from is None or now < self._alone_from:
            return False
        self._alone_from = None
        return True

    def certain(self, model: str) -> int:
        """Return how many slots of a model may be held."""
        return self.seen[model] if self._alone_from is None else 0

    def next_deadline(self) -> Micros:
        """Return when time alone changes something, at the latest, µs."""
        return self._ends_at if self._alone_from is None else self._alone_from

    def note_backends(self, backends: Collection[int]) -> None:
        """Note backends of which nothing was known before, and which gateways that are unheard may use."""
        self._unread.update(backends)

    def on_hello(self, gateway: GatewayId) -> None:
        """Note that a gateway has told what it has."""
        self.unheard.discard(gateway)

    def on_held(self, model: str, slots: int) -> None:
        """Note that slots are held by a gateway that has said hello."""
        self.seen[model] += slots

    def unread(self, now: Micros) -> Collection[int]:
        """Return the backends whose answer, if they are asked now, has all that gateways hold that are unheard."""
        return self._unread if now >= self._lease_over_at else ()

    def on_reading(self, backend: int, asked_at: Micros) -> bool:
        """Note that an engine has answered, and return True if its answer has all that gateways hold that are unheard."""
        is_telling = asked_at >= self._lease_over_at and backend in self._unread
        if is_telling:
            self._unread.discard(backend)
        return is_telling
