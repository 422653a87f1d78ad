"""A request that is ready to be forwarded. Compiled (`tools/compile.py`)."""

from __future__ import annotations

import asyncio

from maitred.core.printing import printable
from maitred.core.request import Request
from maitred.gateway.bodies.body_budget import BodyLease
from maitred.gateway.bodies.prompt_text import PromptText
from maitred.gateway.forwarding.waiting_stream import WaitingStream
from maitred.gateway.observe.request_record import RequestRecord
from maitred.gateway.routes import Route
from maitred.programs import ProgramRequest
from maitred.scheduler.interface import ScheduledRequest, ServedModel, SlotLease
from maitred.wire.client_framing import HeaderBlock
from maitred.wire.messages import Headers


class Explanation:
    """What is decided about one request, for a client that asks."""

    def __init__(self, asked: str) -> None:
        """`asked` is the class that the client has asked for, as far as there is such a class."""
        self._asked = asked
        self.slot: SlotLease | None = None
        """The request in admission; None before, and where it needs no slot."""
        self.rejected = ""
        """Why admission has rejected it."""

    def in_words(self, proxied: ProxyRequest) -> bytes:
        """Return the value of the header: what was decided and why, separated by `; `."""
        record, given, slot = proxied.record, proxied.request.priority_class.label, self.slot
        parts = [f"class={given}"]
        if self._asked != given:
            parts.append(f"asked={self._asked}")
        if slot is not None:
            if slot.queue_reason:
                parts.append(f"queued={slot.queue_reason}")
            if not self.rejected:
                parts.append(f"admitted={slot.admitted_because}")
        if self.rejected:
            parts.append(f"rejected={self.rejected}")
        if proxied.chosen_because and not self.rejected:
            parts.append(f"routed={proxied.chosen_because}")
        counts = (("attempts", record.num_attempts, 1), ("preemptions", record.num_preemptions, 0))
        parts += [f"{name}={count}" for name, count, usual in counts if count > usual]
        return printable("; ".join(parts)).encode("ascii", "replace")


class ProxyRequest(ScheduledRequest):
    """A request that is ready to be forwarded, and what is forwarded. If it is cancelled, its client has left."""

    # What is seldom read before it is set stands in the class: to read it there is dear.
    record: RequestRecord
    """What is known of it, for metrics and logs; set as soon as it was taken in."""
    ends_program = False
    """Whether its program is over when it has ended."""
    is_committed = False
    """Whether the client gets the response of a backend (`Attempts._commit`): nothing else can be sent to it any more."""
    can_restart = True
    """Whether it may be sent anew after a preemption; not where a proxy in front of the backends has sent it."""
    token_cost = 1
    """Tokens of its prompt and its answers, estimated (`request_work`); at least 1."""

    def __init__(
        self,
        route: Route,
        request: Request,
        served: ServedModel,
        method: str,
        path: str,
        headers: Headers,
        block: HeaderBlock,
        body: bytes,
        request_id: bytes,
        body_lease: BodyLease,
        task: asyncio.Task[None],
    ) -> None:
        """`task` serves it."""
        self.task = task
        self.route = route
        self.asks_each = route.asks_each
        self.request = request
        self.served = served
        self.ready_at = request.arrival
        """When it was taken in, µs: the instant of all that is done about it before it must wait for anything."""
        self.method = method
        self.path = path
        """The path with its query string."""
        self.headers = headers
        """The headers for the backend that this request alone has."""
        self.block = block
        """All others."""
        self.body = body
        """The body for the backend."""
        self.request_id = request_id
        self.body_lease = body_lease
        """The bytes of the budget that its body holds, until the request has ended."""
        self.memory_lease = self.failed = None
        self.program: ProgramRequest | None = None
        """What the core of the programs decides by, or None if the request needs no place in KV memory."""
        self.told_headers: Headers | None = None
        """What the gateway adds to the head of its answer: the state of its limits; None: nothing."""
        self.explanation: Explanation | None = None
        """What its answer says of decisions about it, if its client has asked for that."""
        self.waiting_stream: WaitingStream | None = None
        """What sends comments while it waits for that place; None if it may not begin to answer meanwhile."""
        self.hides_usage = False
        """Whether the usage of the stream was asked for by the gateway, and is not shown to the client."""

    def drop_body(self) -> None:
        """Give the memory of the body back: it is not going to be sent."""
        self.body = b""
        prefix = self.request.prefix
        if isinstance(prefix, PromptText):
            prefix.forget()
        self.body_lease.release()

    def forget_failures(self) -> None:
        """Drop the attempts that have failed, and the answer that is held: both refer to this request. Idempotent."""
        failed, self.failed = self.failed, None
        if failed is not None:
            failed.close()
