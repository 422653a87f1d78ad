"""What the tests of both caches share: a small world of prompts, one who listens, and each cache's naive twin."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from hypothesis import strategies as st

from maitred.kv import apply_namespace

Path = tuple[int, ...]
"""A prompt: a path in a binary tree, one step a block, so that prefixes are often shared. Steps are 0 and 1, or in the other
cache namespace 2 and 3."""

DEEPEST = 4
PATHS: st.SearchStrategy[Path] = st.one_of(
    st.lists(st.integers(0, 1), max_size=DEEPEST).map(tuple), st.lists(st.integers(2, 3), max_size=DEEPEST).map(tuple)
)
LONGEST = [
    tuple(2 * space + (number >> bit) % 2 for bit in range(DEEPEST)) for space in (0, 1) for number in range(1 << DEEPEST)
]


def chain(path: Path) -> list[int]:
    keys = [int("1" + "".join(str(step % 2) for step in path[:length]), 2) for length in range(1, len(path) + 1)]
    return list(apply_namespace(keys, "other" if path[:1] > (1,) else ""))


class Listener:
    """Keeps the set of cached keys from what it is told alone. Being told of what it knows already is a defect."""

    def __init__(self) -> None:
        self.keys: set[int] = set()
        self.said: list[str] = []

    def on_stored(self, key: int) -> None:
        assert key not in self.keys
        self.keys.add(key)
        self.said.append(f"+{key}")

    def on_removed(self, key: int) -> None:
        self.keys.remove(key)
        self.said.append(f"-{key}")


class NaivePool:
    """Blocks as vLLM keeps them, each with a name of its own, everything at once and by search."""

    def __init__(self, total: int) -> None:
        self.free = list(range(total))
        self.content: dict[int, int] = {}
        """block -> key, in the order of publication"""
        self.users = [0] * total

    def copies(self, chain: list[int]) -> list[int]:
        """The blocks that answer for the cached prefix of `chain`."""
        found: list[int] = []
        for wanted in chain:
            block = next((block for block, key in self.content.items() if key == wanted), None)
            if block is None:
                break
            found.append(block)
        return found

    def lock(self, chain: list[int]) -> list[int]:
        blocks = self.copies(chain)
        for block in blocks:
            self.users[block] += 1
            if block in self.free:
                self.free.remove(block)
        return blocks

    def grow(self, blocks: list[int], count: int) -> None:
        for _ in range(count):
            block = self.free.pop(0)
            self.content.pop(block, None)
            self.users[block] = 1
            blocks.append(block)

    def unlock(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.users[block] -= 1
            if not self.users[block]:
                blank = block not in self.content
                self.free.insert(0 if blank else len(self.free), block)

    def touch(self, chain: list[int]) -> None:
        for block in reversed(self.copies(chain)):
            if block in self.free:
                self.free.remove(block)
                self.free.append(block)

    def evict(self, count: int) -> int:
        gone = [block for block in self.free if block in self.content][:count]
        for block in gone:
            del self.content[block]
            self.free.remove(block)
        self.free[:0] = gone
        return len(gone)


class Run(msgspec.Struct, eq=False):
    """A node of the naive tree: the steps of `path` from `start` on."""

    path: Path
    start: int
    used: int
    created: int
    hits: int = 0
    priority: int = 0
    locks: int = 0


class Hold(msgspec.Struct, eq=False):
    path: Path
    plain: int = 0
    counted: int = 0
    priority: int = 0


RANKS: dict[str, Callable[[Run], tuple[int, ...]]] = {
    "lru": lambda run: (run.used,),
    "mru": lambda run: (-run.used,),
    "lfu": lambda run: (run.hits, run.used),
    "fifo": lambda run: (run.created,),
    "filo": lambda run: (-run.created,),
    "priority": lambda run: (run.priority, run.used),
    "slru": lambda run: (int(run.hits >= 2), run.used),
}


class NaiveTree:
    """The radix tree as a list of runs, everything at once and by search."""

    def __init__(self, total: int, policy: str) -> None:
        self.total, self.rank = total, RANKS[policy]
        self.runs: list[Run] = []
        self.plain = 0
        self.now = 0

    @property
    def size(self) -> int:
        return sum(len(run.path) - run.start for run in self.runs)

    @property
    def protected(self) -> int:
        return sum(len(run.path) - run.start for run in self.runs if run.locks)

    @property
    def free(self) -> int:
        return self.total - self.protected - self.plain

    def keys(self) -> set[int]:
        return {key for run in self.runs for key in chain(run.path)}

    def cached(self, path: Path) -> int:
        return max(
            (n for run in self.runs for n in range(len(path) + 1) if run.path[:n] == path[:n] and n <= len(run.path)), default=0
        )

    def along(self, path: Path) -> list[Run]:
        """The runs that end on `path`."""
        return [run for run in self.runs if path[: len(run.path)] == run.path]

    def idle(self, path: Path) -> int:
        matched = path[: self.cached(path)]
        spans = [(run.path, n) for run in self.runs if run.locks for n in range(run.start, len(run.path))]
        return len(matched) - len({n for held, n in spans if held[: n + 1] == matched[: n + 1]})

    def touch(self, path: Path) -> None:
        self.now += 1
        path = path[: self.cached(path)]
        for run in list(self.runs):
            if run.start < len(path) and run.path[: min(len(path), len(run.path))] == path[: len(run.path)]:
                run.used = self.now
                if len(run.path) > len(path):
                    self.now += 1
                    self.runs.append(msgspec.structs.replace(run, path=path, used=self.now, created=self.now))
                    run.start = len(path)

    def lock(self, path: Path, priority: int) -> Hold:
        self.touch(path)
        path = path[: self.cached(path)]
        for run in self.along(path):
            run.locks += 1
        return Hold(path, priority=priority)

    def grow(self, hold: Hold, blocks: int) -> None:
        hold.plain += blocks
        self.plain += blocks
        self.evict(self.size + self.plain - self.total)

    def publish(self, hold: Hold, steps: Sequence[int]) -> None:
        before, path = hold.path, hold.path + tuple(steps)
        self.touch(path)
        for run in self.along(path):
            run.hits += len(run.path) > hold.counted
            run.priority = max(run.priority, hold.priority)
        present = self.cached(path)
        if present < len(path):
            self.now += 1
            self.runs.append(Run(path, present, self.now, self.now, 1, hold.priority))
        for run in self.along(path):
            run.locks += len(run.path) > len(before)
        hold.path, hold.counted = path, len(path)
        hold.plain -= len(steps)
        self.plain -= len(steps)

    def unlock(self, hold: Hold) -> None:
        for run in self.along(hold.path):
            run.locks -= 1
        self.plain -= hold.plain

    def evict(self, blocks: int) -> int:
        freed = 0
        while freed < blocks:
            starts = {run.path[: run.start] for run in self.runs}
            leaves = [run for run in self.runs if not run.locks and run.path not in starts]
            if not leaves:
                break
            gone = min(leaves, key=self.rank)
            self.runs.remove(gone)
            freed += len(gone.path) - gone.start
        return freed
