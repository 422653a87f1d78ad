"""LinkedPrograms: the memories of agent programs' requests of all gateways, and to whom each belongs.

It hands what gateways say to what decides (`MemoryHost`), and sees to it that each memory that was begun is ended once:

    EndProgram                    the request has ended
    its gateway is gone           at once; but where the request holds a slot, when that slot is free: till then its engine may
                                  go on with it
    Hello, which does not name it the request has ended, and its gateway could not say so

A memory that a `Hello` names and that is not known here is taken over: by the scheduler that begins to lead, with the program
at the memory where it is; by the same one, which let the waiting requests of a gateway that was gone leave, as a new request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from maitred.core.units import Micros
from maitred.scheduler.link.gateway_books import BookedGateway, BookedMemory, BookedRequest
from maitred.scheduler.link.messages import AnyMessage, BeginProgram, EndProgram, ProgramTokens
from maitred.scheduler.link.terms import LiveMemory, ProgramTerms


class MemoryHost:
    """Decides about memory."""

    say: Callable[[BookedGateway, AnyMessage], None]
    """Sends a message to a gateway, if that is connected. Set by the end of the link."""

    def begin(self, memory: BookedMemory, terms: ProgramTerms, now: Micros) -> None:
        """Take a request that asks for memory. Its gateway is to be told what becomes of it (`BookedMemory`)."""
        raise NotImplementedError

    def take_over(self, memory: BookedMemory, live: LiveMemory, now: Micros) -> None:
        """Take a request that was granted memory by another scheduler."""
        raise NotImplementedError

    def tell(self, memory: BookedMemory) -> None:
        """Tell the gateway of a request, which is back, what has become of the memory."""
        raise NotImplementedError

    def progress(self, memory: BookedMemory, tokens: int) -> None:
        """Count tokens of a response."""
        raise NotImplementedError

    def end(self, memory: BookedMemory, ended: EndProgram | None, now: Micros) -> None:
        """Free the memory of a request that has ended; None: its gateway could not say how."""
        raise NotImplementedError


class LinkedPrograms:
    """The memories of all gateways."""

    def __init__(self, host: MemoryHost | None) -> None:
        """`host` is None for a scheduler without programs: a gateway that has some has another configuration."""
        self._host = host

    def take(self, gateway: BookedGateway, message: AnyMessage, now: Micros) -> bool:
        """Take what a gateway says of its programs. Return False for any other message."""
        host = self._host
        if host is None:
            return False
        match message:
            case BeginProgram():
                if message.number not in gateway.memories:
                    host.begin(self._book(gateway, message.number), message.terms, now)
            case ProgramTokens():
                if (memory := gateway.memories.get(message.number)) is not None:
                    host.progress(memory, message.tokens)
            case EndProgram():
                if (memory := gateway.memories.get(message.number)) is not None:
                    self._end(memory, message, now)
            case _:
                return False
        return True

    def reconcile(self, gateway: BookedGateway, named: Sequence[LiveMemory], now: Micros) -> None:
        """Take what a gateway has at this moment in place of what is known of it. To be called before its requests are."""
        host, numbers = self._host, {live.number for live in named}
        if host is None:
            return
        for memory in [*gateway.memories.values()]:
            if memory.number not in numbers:
                self._end(memory, None, now)
        for live in named:
            known = gateway.memories.get(live.number)
            if known is not None:
                host.tell(known)
            elif live.memory >= 0:
                host.take_over(self._book(gateway, live.number), live, now)
            else:
                host.begin(self._book(gateway, live.number), live.terms, now)

    def abandon(self, gateway: BookedGateway, now: Micros) -> None:
        """End the memories of a gateway that is gone, but for those of requests that hold slots."""
        held = {request.terms.memory for request in gateway.requests.values()}
        for memory in [*gateway.memories.values()]:
            if memory.number not in held:
                self._end(memory, None, now)

    def forget(self, gateways: Iterable[BookedGateway], now: Micros) -> None:
        """End all memories of gateways that are known no more."""
        for gateway in gateways:
            for memory in [*gateway.memories.values()]:
                self._end(memory, None, now)

    def on_slot_freed(self, request: BookedRequest, now: Micros) -> None:
        """Note that a request has left its slot: if its gateway is gone, nothing else ends its memory."""
        memory = request.memory
        if memory is not None and request.gateway.connection is None:
            self._end(memory, None, now)

    def _book(self, gateway: BookedGateway, number: int) -> BookedMemory:
        memory = gateway.memories[number] = BookedMemory(gateway, number)
        return memory

    def _end(self, memory: BookedMemory, ended: EndProgram | None, now: Micros) -> None:
        if memory.gateway.memories.pop(memory.number, None) is not None and self._host is not None:
            self._host.end(memory, ended, now)
