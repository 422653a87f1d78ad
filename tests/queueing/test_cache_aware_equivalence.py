"""The order of each cache-aware policy, kept up to date, is the one computed from scratch in each pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from fake_cache import FakeCache, IdleStep, block_hash, cached_depth, seq
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.core.sequence import SequenceState
from maitred.queueing import SCHEDULERS

BLOCK = 16


class Naive:
    """What a queue would know if it looked at all requests in every pass: slow, and short enough to be believed."""

    def __init__(self, cache: FakeCache, check: int, deprioritize: int) -> None:
        self.cache = cache
        self.check = check
        self.shared = -(-deprioritize // BLOCK)
        self.waiting: dict[int, SequenceState] = {}
        self.computing: dict[int, int] = {}
        """The requests that were admitted while the beginning of their prompt was not cached, with that beginning."""
        self.depths: dict[int, int] = {}
        """How many blocks of each request were cached when it was added, or when the pass began."""
        self.clock = 0
        self.since: dict[int, int] = {}

    def add(self, seq: SequenceState) -> None:
        self.forget(seq.request.id)
        self.waiting[seq.request.id] = seq
        self.depths[seq.request.id] = cached_depth(self.cache, self.block_hashes(seq))
        self.since.setdefault(seq.request.id, self.clock)

    def forget(self, request_id: int) -> None:
        self.computing.pop(request_id, None)

    def begin(self) -> None:
        self.computing = {
            request_id: beginning for request_id, beginning in self.computing.items() if beginning not in self.cache.blocks
        }
        self.depths = {seq.request.id: cached_depth(self.cache, self.block_hashes(seq)) for seq in self.waiting.values()}

    def admit(self, seq: SequenceState) -> None:
        del self.waiting[seq.request.id]
        beginning = self.beginning(seq)
        if beginning is not None and self.considered(seq):
            self.computing[seq.request.id] = beginning

    def block_hashes(self, seq: SequenceState) -> Sequence[int]:
        assert seq.request.prefix is not None
        return seq.request.prefix.block_keys(BLOCK)

    def depth(self, seq: SequenceState) -> int:
        return self.depths[seq.request.id]

    def matched(self, seq: SequenceState) -> int:
        return min(self.depth(seq) * BLOCK, seq.num_tokens_to_prefill - 1)

    def beginning(self, seq: SequenceState) -> int | None:
        block_hashes = self.block_hashes(seq)
        return block_hashes[self.shared - 1] if len(block_hashes) >= self.shared else None

    def considered(self, seq: SequenceState) -> bool:
        return self.depth(seq) * BLOCK <= self.check

    def deprioritized(self) -> set[int]:
        behind, led = set(), set(self.computing.values())
        for each in sorted(self.waiting.values(), key=arrival_rank):
            beginning = self.beginning(each)
            if beginning is not None and self.considered(each):
                if beginning in led:
                    behind.add(each.request.id)
                led.add(beginning)
        return behind


def arrival_rank(seq: SequenceState) -> tuple[int, int]:
    return seq.request.arrival, seq.arrival_index


def lpm(naive: Naive) -> list[SequenceState]:
    behind = naive.deprioritized()

    def rank(seq: SequenceState) -> tuple[bool, int, tuple[int, int]]:
        is_behind = seq.request.id in behind
        return (is_behind, 0 if is_behind else -naive.matched(seq), arrival_rank(seq))

    return sorted(naive.waiting.values(), key=rank)


def shortest(naive: Naive) -> list[SequenceState]:
    behind = naive.deprioritized()
    return sorted(
        naive.waiting.values(),
        key=lambda seq: (seq.request.id in behind, seq.num_tokens_to_prefill - naive.matched(seq), arrival_rank(seq)),
    )


def hrrn(naive: Naive) -> list[SequenceState]:
    behind = naive.deprioritized()

    def rank(seq: SequenceState) -> tuple[bool, Fraction, tuple[int, int]]:
        is_behind = seq.request.id in behind
        waited = naive.clock - naive.since[seq.request.id]
        return (
            is_behind,
            Fraction(0 if is_behind else -waited, seq.num_tokens_to_prefill - naive.matched(seq)),
            arrival_rank(seq),
        )

    return sorted(naive.waiting.values(), key=rank)


def dfs(naive: Naive) -> list[SequenceState]:
    behind = naive.deprioritized()
    paths = {seq: tuple(naive.block_hashes(seq)[: naive.depth(seq)]) for seq in naive.waiting.values()}

    def age(seq: SequenceState) -> tuple[bool, tuple[int, int]]:
        return (seq.request.id in behind, arrival_rank(seq))

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
    """A queue, and beside it the order that it should have. Events are drawn from `random`."""

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
        event = self.random.randrange(4)
        if event == 0:
            self.cache.store(letters)
        elif event == 1:
            self.cache.store_block(block_hash(letters))
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
            self.end_sequence(removed)

    def serve(self) -> None:
        tokens = self.random.randrange(200)
        self.naive.clock += tokens
        self.queue.on_served(seq(-1, ""), tokens, 0, 0)

    def end(self) -> None:
        if self.running:
            self.end_sequence(self.running.pop(self.random.choice(list(self.running))))

    def end_sequence(self, seq: SequenceState) -> None:
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
        self.queue.on_step_start(IdleStep(), 0)
        self.naive.begin()
        return self.order(self.naive)

    def schedule(self) -> None:
        """Admit some requests. Meanwhile the cache changes and others end or are served; the order of this pass stays."""
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


EVENTS = (World.add, World.add, World.add, World.change_the_cache, World.remove, World.serve, World.end, World.preempt)


@pytest.mark.parametrize("name", list(ORDERS))
@settings(max_examples=60, deadline=None)
@given(random=st.randoms(use_true_random=True), limits=LIMITS, events=st.integers(0, 60))
def test_the_order_is_the_one_from_scratch(name: str, random: Random, limits: tuple[int, int], events: int) -> None:
    world = World(name, *limits, random)
    for _ in range(events):
        random.choice(EVENTS)(world)
        if random.randrange(4) == 0:
            world.schedule()
        assert len(world.queue) == len(world.naive.waiting)
    world.drain()
