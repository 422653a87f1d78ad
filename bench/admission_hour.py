"""An hour's load on the admission core in virtual time: clients that come and go while capacity, rules and backends change.

    python bench/admission_hour.py [--clients 10000] [--hours 1] [--seed 1]

Each client sends a request, waits for its end, thinks, and sends the next; some leave while they wait. The capacity and its
lead change every second, backends are drained and come back (their requests are stranded), or fail (their requests go on to
others), and the rules are reloaded every minute. It is an error if more slots are in use after an admission than the capacity
is at that moment, if the books do not balance, or if anything is left at the end.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count
from random import Random
from time import process_time
from typing import Final

import msgspec

from maitred.admission import Action, Admission, AdmissionConfig, ReleaseReason
from maitred.admission.terms.lead import Lead
from maitred.admission.terms.ticket import Ticket
from maitred.core.decisions import Decision
from maitred.core.request import PriorityClass
from maitred.core.units import MILLISECOND, SECOND, Micros

MODELS: Final = ("m", "n")
_CHECK_EVERY: Final = 20_000


def rules(draw: Random) -> AdmissionConfig:
    """Return rules under which all that preempts, retries, reserves and limits is in use."""
    tenants = {f"auth:{n}": {"max_in_flight": draw.randint(1, 40), "max_queued": 2_000} for n in range(4)}
    retry = draw.choice(("reject", "retry"))
    return msgspec.convert({"mode": "priority", "on_preempt": retry, "tenant_policies": tenants}, AdmissionConfig)


class Hour:
    """The core, its clients, and the events to come."""

    def __init__(self, clients: int, seed: int) -> None:
        self.draw = Random(seed)
        self.capacity = dict.fromkeys(MODELS, 64)
        self.core = Admission(rules(self.draw), self.capacity)
        self.now: Micros = 0
        self.tickets: dict[int, Ticket] = {}
        self.outcomes: Counter[str] = Counter()
        self.most_over = 0
        """The most slots in use beyond the capacity after an admission."""
        self._ids, self._turns = count(), count()
        self._events: list[tuple[Micros, int, str, int]] = []
        for client in range(clients):
            self.at(self.draw.randrange(20 * SECOND), "send", client)
        self.at(SECOND, "change", 0)

    def at(self, when: Micros, what: str, which: int) -> None:
        heappush(self._events, (when, next(self._turns), what, which))

    def run(self, until: Micros) -> int:
        """Run until `until`, then let every request end; return the number of events."""
        events = 0
        while self._events:
            due = self.core.next_deadline()
            if due is not None and due < self._events[0][0]:
                self.now = due
                self.follow(self.core.advance(due))
                continue
            self.now, _, what, which = heappop(self._events)
            if self.now < until or what not in ("send", "change"):
                getattr(self, what)(which)
            events += 1
            if not events % _CHECK_EVERY:
                self.core.check()
        for ticket in list(self.tickets.values()):
            self.end(ticket.id)
        self.core.check()
        return events

    def send(self, client: int) -> None:
        number, draw = next(self._ids), self.draw
        ticket = Ticket(number, draw.choice(MODELS), PriorityClass(draw.randrange(4)), f"auth:{client % 8}")
        self.tickets[number] = ticket
        self.follow(self.core.submit(ticket, self.now))
        self.at(self.now + draw.randrange(5 * SECOND, 40 * SECOND), "send", client)
        if not draw.randrange(20):
            self.at(self.now + draw.randrange(10 * SECOND), "end", number)

    def change(self, _: int) -> None:
        draw = self.draw
        model = draw.choice(MODELS)
        self.capacity[model] = draw.choice((0, draw.randrange(1, 256), draw.randrange(200, 256)))
        lead = Lead(min(draw.choice((0, 0, 1, 2)), self.capacity[model]), draw.choice((0, 0, 1)))
        self.follow(self.core.resize(model, self.capacity[model], self.now, lead))
        for number in draw.sample(list(self.tickets), min(8, len(self.tickets))):
            self.follow(self.core.set_stranded(number, stranded=draw.random() < 0.5, now=self.now))
        for number in draw.sample(list(self.tickets), min(4, len(self.tickets))):
            self.follow(self.core.leave_backend(number, self.now))
        if not draw.randrange(60):
            self.follow(self.core.reconfigure(rules(draw), self.now))
        self.at(self.now + SECOND, "change", 0)

    def first_byte(self, number: int) -> None:
        ticket = self.tickets.get(number)
        if ticket is not None and ticket.state.name in ("ADMITTED", "STREAMING"):
            self.core.confirm_first_byte(number, self.now)

    def yield_slot(self, number: int) -> None:
        if number in self.tickets and self.tickets[number].state.name == "VICTIM":
            self.leave(number, ReleaseReason.SLOT_PREEMPTED)

    def end(self, number: int) -> None:
        if number in self.tickets:
            self.leave(number, ReleaseReason.DRAINED)

    def leave(self, number: int, why: ReleaseReason) -> None:
        self.follow(self.core.release(number, why, self.now))
        if number in self.tickets and self.tickets[number].state.name == "LEFT":
            del self.tickets[number]

    def follow(self, decisions: Iterable[Decision]) -> None:
        """Do what the core has decided, and check that what it admitted had room."""
        for decision in decisions:
            self.outcomes[f"{decision.action} {decision.reason}"] += 1
            ticket = self.tickets.get(decision.subject)
            if ticket is None:
                continue
            if decision.action is Action.ADMIT:
                in_use = self.core.view(ticket.pool).in_flight
                self.most_over = max(self.most_over, in_use - self.capacity[ticket.pool])
                hold = self.draw.randrange(100 * MILLISECOND, 2 * SECOND)
                self.at(self.now + hold // 4, "first_byte", ticket.id)
                self.at(self.now + hold, "end", ticket.id)
            elif decision.action is Action.PREEMPT_SLOT:
                self.at(self.now + self.draw.randrange(1, 80 * MILLISECOND), "yield_slot", ticket.id)
            elif decision.action is Action.REJECT:
                del self.tickets[ticket.id]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    hour, began = Hour(given.clients, given.seed), process_time()
    events = hour.run(round(given.hours * 3600 * SECOND))
    print(f"{given.clients} clients, {given.hours:g} h: {events} events in {process_time() - began:.0f} s of CPU")
    for outcome, n in sorted(hour.outcomes.items()):
        print(f"  {outcome:<28}{n:>10}")
    left = len(hour.tickets) + sum(hour.core.view(model).in_flight + hour.core.view(model).waiting for model in MODELS)
    print(f"slots in use beyond the capacity at an admission: {hour.most_over}; left at the end: {left}")
    raise SystemExit(1 if hour.most_over > 0 or left else 0)


if __name__ == "__main__":
    main()
