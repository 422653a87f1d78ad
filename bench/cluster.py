"""What several processes that share one scheduler do under load, and when one of them fails: real processes on loopback.

    python bench/cluster.py [--seconds 15] [--bulk 48] [--chats-per-sec 8] [--workers 3] [--only NAME] [--tells]

An engine runs 8 sequences at once and tells nobody that limit (with `--tells` it does); more wait in it. A flood of `bulk`
requests keeps it full, and chats (class `interactive`) come at random. The same load goes through

    one          `maitred serve`
    workers      `maitred serve --workers N`; and a worker is killed a third of the way in, or stands still for 5 s
    cluster      three `maitred serve --scheduler`, each with a port of its own, and two `maitred scheduler` with an election in
                 Redis (where there is none, by a file); and a process of it is killed or stands still, or the link of a gateway
                 carries nothing for 5 s, in one direction or both
    mixed        the cluster, and again and again SIGHUP to all, kill -9 of a gateway, which is started anew, and SIGSTOP of
                 another one, at random instants

and of each is printed: TTFT of the chats, tokens per second of bulk, the most requests that the engine had at once (`most`),
and of these the most whose gateway had not let them go (`held`): a victim of a preemption is at the engine until it notices
that its connection is closed, a moment after its slot was given to another (`cluster_engine`). Where something has failed:
requests that failed beyond those that a killed process had (told by the ports of its connections; and those that the system
has taken for its port before it had ended), streams that broke off beyond these, how long after the fault a chat that came
after it had its first byte, and the longest time between the first bytes of two chats from the fault on. `slots` bounds `held`:
the most that a scheduler has had, by its decision log, when it granted any of the requests that were in flight (one that learns
takes no slot away that it has granted), and a slot that it did not have ends the run. These are 8, as many as a gateway that is
gone holds in the books and the engine does not show, what is kept at the engine beyond the limit that was learned (`lead`,
docs/admission.md), and without `--tells`, while the limit is probed, which takes a fraction of a
second, one more and what is held back for chats then, 10 to 14 in all. In the warm-up the limit is searched, with 12 slots or
18 for a moment; a leader that takes over begins with what the one before knew.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import signal
import statistics
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise
from random import Random

from cluster_load import BULK_TOKENS, Load, Sent
from cluster_parts import Cut, Fault, Processes, cut, kill, stop

STOP_SECS = 5.0
REDIS_PAUSE_SECS = 1.0
MIXED_ROUNDS = 8
_LOG_SECS = 0.5
"""In which the last lines of a decision log are written."""
Harm = Callable[[Processes, Fault], Awaitable[None]]
"""What is done to the processes."""


async def kill_redis(processes: Processes, fault: Fault) -> None:
    """Kill Redis, which is there again after a second, and has lost all."""
    await kill(processes.redis, fault)
    await asyncio.sleep(REDIS_PAUSE_SECS)
    processes.start_redis()


async def mix(processes: Processes, fault: Fault) -> None:
    """Do several things at once, again and again."""
    random = Random()
    for number in range(MIXED_ROUNDS):
        killed, stopped = random.sample(processes.gateways, 2)
        stopping = asyncio.create_task(stop(stopped, fault, random.choice((1.0, 2.9, STOP_SECS))))
        await asyncio.sleep(random.random() * 2)
        await kill(killed, fault)
        await asyncio.sleep(random.random())
        restarting = asyncio.create_task(processes.restart(killed))
        for pid in (*processes.schedulers, *processes.gateways):
            if pid != killed:
                os.kill(pid, signal.SIGHUP)
        if number % 2:
            await asyncio.sleep(random.random())
            await stop(processes.leader(), fault, random.choice((0.5, 2.5)))
        await asyncio.gather(stopping, restarting)


WORKERS: dict[str, Harm | None] = {
    "one": None,
    "workers": None,
    "workers: kill -9 of one": lambda p, fault: kill(p.worker(), fault),
    "workers: SIGSTOP of one": lambda p, fault: stop(p.worker(), fault, STOP_SECS),
}
CLUSTER: dict[str, Harm | None] = {
    "cluster": None,
    "cluster: kill -9 gateway": lambda p, fault: kill(p.gateways[0], fault),
    "cluster: kill -9 leader": lambda p, fault: kill(p.leader(), fault),
    "cluster: kill -9 Redis": kill_redis,
    "cluster: SIGSTOP gateway": lambda p, fault: stop(p.gateways[0], fault, STOP_SECS),
    "cluster: SIGSTOP leader": lambda p, fault: stop(p.leader(), fault, STOP_SECS),
    "cluster: SIGSTOP standby": lambda p, fault: stop(p.standby(), fault, STOP_SECS),
    "cluster: SIGSTOP Redis": lambda p, fault: stop(p.redis, fault, STOP_SECS),
    "cluster: link cut": lambda p, fault: cut(p, Cut.BOTH, fault, STOP_SECS),
    "cluster: cut to scheduler": lambda p, fault: cut(p, Cut.TO_SCHEDULER, fault, STOP_SECS),
    "cluster: cut to gateway": lambda p, fault: cut(p, Cut.TO_GATEWAY, fault, STOP_SECS),
    "mixed": mix,
}


async def play(options: argparse.Namespace, name: str, harm: Harm | None) -> str:
    """Send the load through what `name` says, and return what is to be printed of it."""
    with contextlib.ExitStack() as stack:
        processes = Processes(stack, tells=options.tells)
        if name in CLUSTER:
            await processes.start_cluster()
        else:
            await processes.start_workers(1 if name == "one" else options.workers)
        load, fault = Load(processes.ports, Random(1)), Fault()
        began = time.monotonic()
        until = began + options.warm_up + (60 if harm is mix else options.seconds)
        tasks = [asyncio.create_task(load.flood(until)) for _ in range(options.bulk)]
        tasks.append(asyncio.create_task(load.chat(until, options.chats_per_sec)))
        await asyncio.sleep(options.warm_up)
        most_in_use(processes), processes.most_slots()  # Not those while the gateways learned the limit.
        if harm is not None:
            await asyncio.sleep(options.seconds / 3)
            await harm(processes, fault)
        await asyncio.gather(*tasks)
        if options.logs:
            for pid in (*processes.schedulers, *processes.gateways):
                print(pid, processes.log_text(pid))
            print(*Counter(one.answer for one in load.sent if not one.is_whole).items(), sep="\n")
        await asyncio.sleep(_LOG_SECS)
        return describe(load, fault, began + options.warm_up, until, (*most_in_use(processes), processes.most_slots()))


def most_in_use(processes: Processes) -> tuple[int, int]:
    """Return how many requests the engine has had at once since this was asked last, and how many of them were held at most."""
    said = urllib.request.urlopen(f"http://127.0.0.1:{processes.engine_port}/most").read()
    most, held = map(int, said.split())
    return most, held


def describe(load: Load, fault: Fault, since: float, until: float, most: tuple[int, int, int]) -> str:
    chats = [one for one in load.sent if one.is_chat and one.at >= since]
    waits = [one.first_at - one.at for one in chats if one.first_at is not None]
    quantiles = statistics.quantiles(waits, n=100) if len(waits) > 1 else [math.nan] * 99
    ended = [one for one in load.sent if not one.is_chat and one.is_whole and one.ended_at and since <= one.ended_at <= until]
    per_sec = len(ended) * BULK_TOKENS / (until - since)
    assert most[1] <= most[2], f"{most[1]} requests were held, and there were {most[2]} slots"
    line = f"{quantiles[49] * 1e3:7.0f} {quantiles[98] * 1e3:8.0f} {per_sec:9.0f} {most[0]:6} {most[1]:5} {most[2]:6}"
    failed = [one for one in load.sent if not one.is_whole]
    return f"{line} {len(failed):8}" if not fault.at else f"{line} {describe_fault(fault, chats, failed)}"


def describe_fault(fault: Fault, chats: list[Sent], failed: list[Sent]) -> str:
    beyond = [one for one in failed if not fault.had(one)]
    broken = sum(one.first_at is not None for one in beyond)
    after = [one for one in chats if one.first_at is not None and one.first_at >= fault.at]
    again = min(((one.first_at or 0) for one in after if one.at >= fault.at), default=math.nan) - fault.at
    firsts = [fault.at, *sorted(one.first_at or 0 for one in after)]
    gap = max(later - earlier for earlier, later in pairwise(firsts))
    had = f"({len(failed) - len(beyond)} that the killed one had)"
    return f"{len(beyond):8} {broken:8} {again * 1e3:10.0f} {gap * 1e3:10.0f}   {had}"


async def main(options: argparse.Namespace) -> None:
    print(f"{'':26} TTFT p50, p99 ms  bulk tok/s   most  held  slots   failed   broken   chat after  longest gap, ms")
    for name, harm in (WORKERS | CLUSTER).items():
        if options.only in name:
            print(f"{name:26}", await play(options, name, harm), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement")
    parser.add_argument("--warm-up", type=float, default=10.0, help="seconds in which the gateway learns the engine")
    parser.add_argument("--bulk", type=int, default=48, help="bulk requests at once")
    parser.add_argument("--chats-per-sec", type=float, default=8.0)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--only", default="", help="the scenes whose name has this in it")
    parser.add_argument("--tells", action="store_true", help="the engine says how many sequences it runs at once")
    parser.add_argument("--logs", action="store_true", help="print what schedulers and gateways have logged")
    asyncio.run(main(parser.parse_args()))
