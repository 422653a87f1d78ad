"""Kept up to date, each order is what it would be if everything were looked at anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from fake_cache import FakeCache, Idle, depth, key, seq
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.core.sequence import SequenceState
from maitred.queueing import SCHEDULERS

BLOCK = 16


class Naive:
    """What a queue would know if it looked at everybody in every pass: slow, and short enough to be believed."""

    def __init__(self, cache: FakeCache, check: int, deprioritize: int) -> None:
        self.cache = cache
        self.check = check
        self.shared = -(-deprioritize // BLOCK)
        self.waiting: dict[int, SequenceState] = {}
        self.computing: dict[int, int] = {}
        """Who was admitted when the beginning of his prompt was not cached, and which beginning it is."""
        self.depths: dict[int, int] = {}
        """How many blocks of each were cached when it was added, or when the pass began."""
        self.clock = 0
        self.since: dict[int, int] = {}

    def add(self, seq: SequenceState) -> None:
        self.forget(seq.request.id)
        self.waiting[seq.request.id] = seq
        self.depths[seq.request.id] = depth(self.cache, self.chain(seq))
        self.since.setdefault(seq.request.id, self.clock)

    def forget(self, request_id: int) -> None:
        self.computing.pop(request_id, None)

    def begin(self) -> None:
        self.computing = {who: begin for who, begin in self.computing.items() if begin not in self.cache.blocks}
        self.depths = {seq.request.id: depth(self.cache, self.chain(seq)) for seq in self.waiting.values()}

    def admit(self, seq: SequenceState) -> None:
        del self.waiting[seq.request.id]
        begin = self.beginning(seq)
        if begin is not None and self.considered(seq):
            self.computing[seq.request.id] = begin

    def chain(self, seq: SequenceState) -> Sequence[int]:
        assert seq.request.prefix is not None
        return seq.request.prefix.block_keys(BLOCK)

    def depth(self, seq: SequenceState) -> int:
        return self.depths[seq.request.id]

    def matched(self, seq: SequenceState) -> int:
        return min(self.depth(seq) * BLOCK, seq.num_tokens_to_prefill - 1)

    def beginning(self, seq: SequenceState) -> int | None:
        chain = self.chain(seq)
        return chain[self.shared - 1] if len(chain) >= self.shared else None

    def considered(self, seq: SequenceState) -> bool:
        return self.depth(seq) * BLOCK <= self.check

    def held_back(self) -> set[int]:
        held, led = set(), set(self.computing.values())
        for each in sorted(self.waiting.values(), key=tie):
            begin = self.beginning(each)
            if begin is not None and self.considered(each):
                if begin in led:
                    held.add(each.request.id)
                led.add(begin)
        return held


def tie(seq: SequenceState) -> tuple[int, int]:
    return seq.request.arrival, seq.arrival_index


def lpm(naive: Naive) -> list[SequenceState]:
    held = naive.held_back()

    def rank(seq: SequenceState) -> tuple[bool, int, tuple[int, int]]:
        back = seq.request.id in held
        return (back, 0 if back else -naive.matched(seq), tie(seq))

    return sorted(naive.waiting.values(), key=rank)


def shortest(naive: Naive) -> list[SequenceState]:
    held = naive.held_back()
    return sorted(
        naive.waiting.values(),
        key=lambda seq: (seq.request.id in held, seq.num_tokens_to_prefill - naive.matched(seq), tie(seq)),
    )


def hrrn(naive: Naive) -> list[SequenceState]:
    held = naive.held_back()

    def rank(seq: SequenceState) -> tuple[bool, Fraction, tuple[int, int]]:
        back = seq.request.id in held
        waited = naive.clock - naive.since[seq.request.id]
        return (back, Fraction(0 if back else -waited, seq.num_tokens_to_prefill - naive.matched(seq)), tie(seq))

    return sorted(naive.waiting.values(), key=rank)


def dfs(naive: Naive) -> list[SequenceState]:
    held = naive.held_back()
    paths = {seq: tuple(naive.chain(seq)[: naive.depth(seq)]) for seq in naive.waiting.values()}

    def age(seq: SequenceState) -> tuple[bool, tuple[int, int]]:
        return (seq.request.id in held, tie(seq))

    def below(path: tuple[int, ...]) -> list[SequenceState]:
        inside = [seq for seq, its in paths.items() if its[: len(path)] == path]
        branches = {its[: len(path) + 1] for its in (paths[seq] for seq in inside) if len(its) > len(path)}

        def rank(branch: tuple[int, ...]) -> tuple[int, Any]:
            there = [seq for seq in inside if paths[seq][: len(branch)] == branch]
            return (-len(there), min(age(seq) for seq in there))

        order = [seq for branch in sorted(branches, key=rank) for seq in below(branch)]
        return order + sorted((seq for seq in inside if paths[seq] == path), key=age)

    return below(())


ORDERS: dict[str, Callable[[Naive], list[SequenceState]]] = {
    "lpm": lpm,
    "shortest-prefill-first": shortest,
    "hrrn": hrrn,
    "dfs-weight": dfs,
}

LIMITS = st.sampled_from([(32, 32), (0, 32), (-1, 32), (64, 32), (32, 17), (16, 1), (200, 64)])


STEMS = ("", "a", "ab", "abcd", "abce", "bbbb")


class World:
    """A queue, and beside it what it should do. What happens is drawn: `random` holds the dice."""

    def __init__(self, name: str, check: int, deprioritize: int, random: Random) -> None:
        self.cache = FakeCache(BLOCK)
        self.queue = SCHEDULERS.get(f"{name}(check={check}, deprioritize={deprioritize})")().make_queue(self.cache, Random(0))
        self.naive = Naive(self.cache, check, deprioritize)
        self.order = ORDERS[name]
        self.random = random
        self.running: dict[int, SequenceState] = {}
        self.count = 0

    def letters(self) -> str:
        return self.random.choice(STEMS) + "".join(self.random.choices("ab", k=self.random.randrange(3)))

    def change_the_cache(self) -> None:
        letters = self.letters() + "a"
        happens = self.random.randrange(4)
        if happens == 0:
            self.cache.publish(letters)
        elif happens == 1:
            self.cache.publish_block(key(letters))
        else:
            self.cache.evict(letters[: self.random.randrange(len(letters)) + 1])

    def add(self) -> None:
        new = seq(self.count, self.letters(), extra=self.random.randrange(1, 40), arrival=self.count // 2)
        self.count += 1
        self.queue.add(new, 0)
        self.naive.add(new)

    def remove(self) -> None:
        request_id = self.random.randrange(self.count + 1)
        removed = self.queue.remove(request_id)
        assert removed is self.naive.waiting.pop(request_id, None)
        if removed is not None:
            self.left(removed)

    def serve(self) -> None:
        tokens = self.random.randrange(200)
        self.naive.clock += tokens
        self.queue.on_served(seq(-1, ""), tokens, 0, 0)

    def end(self) -> None:
        if self.running:
            self.left(self.running.pop(self.random.choice(list(self.running))))

    def left(self, seq: SequenceState) -> None:
        self.queue.on_sequence_end(seq, 0)
        self.naive.forget(seq.request.id)
        self.naive.since.pop(seq.request.id, None)

    def preempt(self) -> None:
        if self.running:
            victim = self.running.pop(self.random.choice(list(self.running)))
            victim.num_output_tokens = self.random.randrange(20)
            victim.num_tokens_to_prefill = victim.request.prompt_tokens + victim.num_output_tokens
            self.queue.add(victim, 0, front=True)
            self.naive.add(victim)

    def begin(self) -> list[SequenceState]:
        self.queue.on_step_start(Idle(), 0)
        self.naive.begin()
        return self.order(self.naive)

    def schedule(self) -> None:
        """Admit some. The cache changes meanwhile, others end and are served, and the order of this pass does not change."""
        for expected in self.begin()[: self.random.randrange(5)]:
            assert self.queue.peek() is expected
            assert self.queue.pop() is expected
            self.naive.admit(expected)
            self.running[expected.request.id] = expected
            self.random.choice([self.change_the_cache, self.end, self.serve])()

    def drain(self) -> None:
        expected = self.begin()
        assert [self.queue.pop().arrival_index for _ in expected] == [seq.arrival_index for seq in expected]
        assert self.queue.peek() is None


HAPPENS = (World.add, World.add, World.add, World.change_the_cache, World.remove, World.serve, World.end, World.preempt)


@pytest.mark.parametrize("name", list(ORDERS))
@settings(max_examples=60, deadline=None)
@given(random=st.randoms(use_true_random=True), limits=LIMITS, events=st.integers(0, 60))
def test_the_order_is_the_one_from_scratch(name: str, random: Random, limits: tuple[int, int], events: int) -> None:
    world = World(name, *limits, random)
    for _ in range(events):
        random.choice(HAPPENS)(world)
        if random.randrange(4) == 0:
            world.schedule()
        assert len(world.queue) == len(world.naive.waiting)
    world.drain()
