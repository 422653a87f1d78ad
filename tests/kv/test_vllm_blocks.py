"""vLLM's recorded schedule with prefix caching, replayed block by block: its schedule is given, what its memory did is not.

Step by step the pool must have as many blocks free as vLLM's had, each request must hold as many, and every admission, first
or after a preemption, must find as many cached tokens. With 63 blocks for 60 requests all of them are evicted several times, so
one block out of order would show.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec

from maitred.kv import BlockPool, PromptTokenIds
from maitred.kv.block_runs import RunLock

RECORD = Path(__file__).parent.parent / "vectors" / "vllm_v3.json.gz"
GROUPS = (1679489467, 3152218661, 4000068333)


class Running(msgspec.Struct):
    tokens: list[int]
    prompt: int
    number: int
    lock: RunLock | None = None
    computed: int = 0

    def emit(self) -> None:
        k = len(self.tokens) - self.prompt
        self.tokens.append(10 + (7919 * self.number + 104729 * k + 13) % 985)


def prompt_tokens(number: int, asked: dict[str, Any]) -> list[int]:
    shared, length = asked.get("prefix_len", 0), asked["prompt_len"]
    prefix = [10 + (GROUPS[asked["prefix_group"]] + 31 * i) % 985 for i in range(shared)]
    return prefix + [10 + (6151 * number + 53 * i + 7) % 985 for i in range(length - shared)]


class Memory:
    """What vLLM does with blocks when it schedules, on top of the pool."""

    def __init__(self, blocks: int, size: int) -> None:
        self.pool, self.size = BlockPool(blocks, size), size

    def schedule(self, seq: Running, tokens: int) -> bool:
        """Allocate what `tokens` more tokens of `seq` need; return False if there is no room."""
        known = PromptTokenIds(tuple(seq.tokens)).block_keys(self.size)
        usable = known[: (len(seq.tokens) - 1) // self.size] if seq.lock is None else []
        held = (
            len(usable[: self.pool.num_cached_blocks(usable)])
            if seq.lock is None
            else seq.lock.num_committed + seq.lock.num_private
        )
        computed = held * self.size if seq.lock is None else seq.computed
        needed = -(-(computed + tokens) // self.size) - held
        if needed + self.pool.num_unreferenced(usable) > self.pool.free:
            return False
        lock = seq.lock = self.pool.lock(usable) if seq.lock is None else seq.lock
        self.pool.reserve(needed)
        self.pool.assign(lock, needed)
        seq.computed = computed + tokens
        self.pool.commit_blocks(lock, known[lock.num_committed : seq.computed // self.size])
        return True

    def release(self, seq: Running) -> None:
        assert seq.lock is not None
        self.pool.release(seq.lock)
        seq.lock = None


def test_the_pool_holds_finds_and_evicts_what_vllm_did() -> None:
    with gzip.open(RECORD, "rt", encoding="utf-8") as file:
        case = json.load(file)
    config, recorded = case["workload"]["config"], case["recorded"]
    memory = Memory(recorded["usable_blocks"], config["block_size"])
    seqs: dict[str, Running] = {}
    for number, asked in enumerate(case["workload"]["requests"]):
        seqs[asked["id"]] = Running(prompt_tokens(number, asked), asked["prompt_len"], number)
    before: list[str] = []
    preempted = 0
    for step in recorded["steps"]:
        victims = [name for name in reversed(before) if name in step["preempted"]]
        preempted += len(victims)
        for name, tokens in step["num_scheduled_tokens"].items():
            seq, admitted = seqs[name], seqs[name].lock is None
            while not memory.schedule(seq, tokens):
                memory.release(seqs[victims.pop(0)])
            if name in step["new"]:
                assert seq.computed - tokens == recorded["requests"][name]["cached_tokens"]
            assert admitted == (name in step["new"] + step["resumed"])
        for name in victims:
            memory.release(seqs[name])  # vLLM preempted it for one that was preempted after it
        assert memory.pool.free == step["free_blocks"], step["step"]
        held = {name: seqs[name].lock for name in step["blocks"]}
        assert {name: lock and lock.num_committed + lock.num_private for name, lock in held.items()} == step["blocks"]
        for name in step["num_scheduled_tokens"]:
            seq = seqs[name]
            if seq.computed == len(seq.tokens):
                seq.emit()
            if len(seq.tokens) - seq.prompt == recorded["requests"][name]["output_tokens"]:
                memory.release(seq)
        before = step["running"]
        memory.pool.check()
    assert preempted == 14
    assert sum(request["cached_tokens"] > 0 for request in recorded["requests"].values()) == 22
