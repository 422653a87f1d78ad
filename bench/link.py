"""What the link between a scheduler and its gateways costs: bytes and CPU of a request, through both ends, without sockets.

    python bench/link.py [--requests 20000] [--rounds 5]

Requests go through a gateway's end and the scheduler's in turns of so many at once: submit, grant, first byte, release. For
each number the CPU time of each end is given in µs and in loops of the calibration beside it, of which a million run before and
after each measurement; the best of the rounds. The cost of a socket comes on top, once per turn and not per request.
"""

from __future__ import annotations

import argparse
from time import process_time

import msgspec

from maitred.admission import Admission, AdmissionConfig, ReleaseReason
from maitred.core.units import MILLISECOND, Micros
from maitred.scheduler.link.events import Granted
from maitred.scheduler.link.gateway_books import BookedRequest
from maitred.scheduler.link.gateway_end import GatewayEnd
from maitred.scheduler.link.placer import Placer
from maitred.scheduler.link.scheduler_end import SchedulerEnd
from maitred.scheduler.link.terms import RequestTerms
from measuring import CALIBRATION_LOOPS, calibrate

SECRET = b"a secret of a benchmark"
TERMS = RequestTerms("meta-llama/Llama-3.1-8B-Instruct", 1, "auth:acme", 900, 700, 200, client_id="chatcmpl-7f3c2b9a")
SLOTS = 256


class OneBackend(Placer):
    """Sends all requests to one backend."""

    def place(self, request: BookedRequest, now: Micros) -> tuple[int, int | None]:
        return 0, None


class Account:
    """CPU seconds of both ends, and bytes each way."""

    def __init__(self) -> None:
        self.gateway = self.scheduler = 0.0
        self.up = self.down = 0


def open_pair() -> tuple[GatewayEnd, SchedulerEnd]:
    """Return the two ends, connected."""
    config = msgspec.convert({"mode": "priority"}, AdmissionConfig)
    scheduler = SchedulerEnd(SECRET, lambda now: Admission(config, {}, now=now), lambda books: OneBackend())
    scheduler.lead(1, 10**12, [], {TERMS.model: SLOTS}, {0: TERMS.model}, 0)
    gateway = GatewayEnd("g", "1", SECRET)
    gateway.connect(bytes(32), 0)
    scheduler.accept(1, bytes(32), 0)
    for _ in range(3):
        scheduler.feed(1, gateway.take_bytes(), 0)
        gateway.feed(scheduler.take_bytes(1, 0), 0)
    return gateway, scheduler


def exchange(gateway: GatewayEnd, scheduler: SchedulerEnd, account: Account, now: Micros) -> list[object]:
    """Carry one turn's frame up and one down, and return what the gateway hears."""
    began = process_time()
    up = gateway.take_bytes()
    gateway.note_written(len(up))
    middle = process_time()
    scheduler.feed(1, up, now)
    down = scheduler.take_bytes(1, now)
    scheduler.connections.note_written(1, len(down))
    ended = process_time()
    heard: list[object] = [*gateway.feed(down, now)] if down else []
    account.gateway += middle - began + process_time() - ended
    account.scheduler += ended - middle
    account.up += len(up)
    account.down += len(down)
    return heard


def measure(num_requests: int, at_once: int) -> Account:
    """Serve requests in turns of `at_once`."""
    gateway, scheduler = open_pair()
    account, now, number = Account(), 0, 0
    while number < num_requests:
        began = process_time()
        now += MILLISECOND
        gateway.advance(now)
        turn = range(number, number + at_once)
        number += at_once
        for one in turn:
            gateway.submit(one, TERMS, now)
        account.gateway += process_time() - began
        granted = exchange(gateway, scheduler, account, now)
        assert sum(isinstance(event, Granted) for event in granted) == at_once
        began = process_time()
        for one in turn:
            gateway.confirm_first_byte(one)
        account.gateway += process_time() - began
        exchange(gateway, scheduler, account, now)
        began = process_time()
        for one in turn:
            gateway.release(one, ReleaseReason.DRAINED, 850)
        account.gateway += process_time() - began
        exchange(gateway, scheduler, account, now)
    return account


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print("at once   gateway µs (loops)   scheduler µs (loops)   grants/s of CPU   bytes up/down of a request")
    for at_once in (1, 8, 32, 64):
        best: tuple[float, float, float, Account] | None = None
        for _ in range(arguments.rounds):
            before = calibrate()
            account = measure(arguments.requests, at_once)
            loop = (before + calibrate()) / 2 / CALIBRATION_LOOPS
            requests = -(-arguments.requests // at_once) * at_once
            gateway, scheduler = account.gateway / requests, account.scheduler / requests
            if best is None or (gateway + scheduler) / loop < (best[0] + best[1]) / best[2]:
                best = (gateway, scheduler, loop, account)
        assert best is not None
        gateway, scheduler, loop, account = best
        requests = -(-arguments.requests // at_once) * at_once
        print(
            f"{at_once:7}   {gateway * 1e6:7.1f} ({gateway / loop:6.0f})     {scheduler * 1e6:7.1f} ({scheduler / loop:6.0f})"
            f"       {1 / scheduler:9.0f}         {account.up / requests:5.0f} / {account.down / requests:.0f}"
        )


if __name__ == "__main__":
    main()
