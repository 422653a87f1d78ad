"""What the tests of both caches share: a small world of prompts, one who listens, and the naive twin of a block pool."""

from __future__ import annotations

from hypothesis import strategies as st

DEEPEST = 4
PATHS = st.lists(st.integers(0, 1), max_size=DEEPEST).map(tuple)
"""Prompts: paths in a binary tree, so that prefixes are often shared. One step is one block."""

LONGEST = [tuple((number >> bit) & 1 for bit in range(DEEPEST)) for number in range(1 << DEEPEST)]


def key(path: tuple[int, ...]) -> int:
    """The key of the block in which `path` ends."""
    return int("1" + "".join(map(str, path)), 2)


def chain(path: tuple[int, ...]) -> list[int]:
    return [key(path[:length]) for length in range(1, len(path) + 1)]


class Listener:
    """Keeps the set of cached keys from what it is told alone. Being told of what it knows already is a defect."""

    def __init__(self) -> None:
        self.keys: set[int] = set()
        self.said: list[str] = []

    def published(self, key: int) -> None:
        assert key not in self.keys
        self.keys.add(key)
        self.said.append(f"+{key}")

    def evicted(self, key: int) -> None:
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
                self.free.append(block)

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
