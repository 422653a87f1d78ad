"""Emulated clients: a workload replayed over HTTP, open loop.

Each job is sent at its arrival whether or not the ones before it have been answered, as users do it; a closed loop would
slow down with the server and hide its queue. An answer has exactly the length that the job names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from time import monotonic

import msgspec

from maitred.emulator import tokens
from maitred.emulator.tally import Flight, Outcome, Tally
from maitred.request import Request
from maitred.units import Micros, to_seconds
from maitred.wire import sse
from maitred.wire.client import Client, Origin
from maitred.wire.failures import UpstreamError
from maitred.wire.response import Response
from maitred.workload import Job

_REJECTIONS = frozenset((408, 429, 503))
_PREEMPTED = (b"x-smg-preempted", b"true")

_encode = msgspec.json.Encoder().encode


def looped(jobs: Iterable[Job], period: Micros) -> Iterator[Job]:
    """`jobs` for ever, each round `period` after the one before; they must all arrive within it."""
    kept = list(jobs)
    start: Micros = 0
    while kept:
        for job in kept:
            yield Job(msgspec.structs.replace(job.request, arrival=start + job.request.arrival), job.output_tokens)
        start += period


class Clients:
    """As many clients as it takes, of one server."""

    def __init__(self, client: Client, server: Origin, model: str, tally: Tally) -> None:
        self._client = client
        self._server = server
        self._model = model
        self._tally = tally
        self._flights: set[asyncio.Task[None]] = set()

    async def play(self, jobs: Iterable[Job]) -> None:
        """Send every job when it is due, counted from now. Ends with the last one sent; cancel it to send no more."""
        start = monotonic()
        for job in jobs:
            early = start + to_seconds(job.request.arrival) - monotonic()
            if early > 0:
                await asyncio.sleep(early)
            flight = asyncio.create_task(self._fly(job))
            self._flights.add(flight)
            flight.add_done_callback(self._flights.discard)

    async def landed(self) -> None:
        """Until every answer that is on its way has come."""
        while self._flights:
            await asyncio.wait(self._flights)

    async def give_up(self) -> None:
        """Cancel whatever is still on its way."""
        flights = tuple(self._flights)
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)

    async def _fly(self, job: Job) -> None:
        flight = self._tally.send(job.request.priority_class, monotonic())
        outcome = Outcome.CANCELLED
        try:
            outcome = await self._ask(job, flight)
        except UpstreamError:
            outcome = Outcome.FAILED
        finally:
            flight.end(outcome, monotonic())

    async def _ask(self, job: Job, flight: Flight) -> Outcome:
        """Raises UpstreamError."""
        headers = [(b"content-type", b"application/json"), (b"x-smg-priority", job.request.priority_class.label.encode())]
        response = await self._client.request(self._server, "POST", "/v1/chat/completions", headers, self._body(job))
        tail = b""

        def heard(piece: bytes, _more: bool) -> None:
            nonlocal tail
            flight.token(monotonic())
            tail = (tail + piece)[-len(sse.DONE) :]

        try:
            if response.status != 200:
                while await response.read():
                    pass
                return _refusal(response)
            await response.pipe(heard)
        finally:
            response.close()
        return Outcome.COMPLETED if tail == sse.DONE else Outcome.FAILED

    def _body(self, job: Job) -> bytes:
        return _encode(
            {
                "model": self._model,
                "messages": [{"role": "user", "content": _prompt(job.request)}],
                "max_tokens": job.output_tokens,
                "ignore_eos": True,
                "stream": True,
            }
        )


def _refusal(response: Response) -> Outcome:
    if _PREEMPTED in response.headers:
        return Outcome.PREEMPTED
    return Outcome.REJECTED if response.status in _REJECTIONS else Outcome.FAILED


def _prompt(request: Request) -> str:
    """So long that, with what the chat template adds, it has the tokens that the job names (or the fewest there can be)."""
    added = tokens.CHAT_TOKENS_PER_MESSAGE + tokens.CHAT_TOKENS_FOR_ANSWER
    return tokens.filler(max(1, request.prompt_tokens - added))
