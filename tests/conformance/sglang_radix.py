"""SGLang's recorded radix cache traces, played against `RadixCache`.

A case says in `ops` what was done, one after the other, and what came of each: `insert` and `match` (perhaps with a lock, which
an `unlock` lets go later) with how many tokens were there, `evict` with how many were evicted and what is left of everything
inserted so far, and after each the sizes of the cache. All counts are tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from maitred.kv import EVICTIONS, PromptTokenIds, RadixCache, apply_namespace
from maitred.kv.radix_cache import RadixLock


def run_case(case: dict[str, Any]) -> list[str]:
    """What differs from the record, one line each; empty: all is as recorded."""
    replay = _Replay(case)
    problems: list[str] = []
    for number, op in enumerate(case["ops"]):
        found = replay.play(op)
        differing = [f"{what} {found[what]}, recorded {op[what]}" for what in found if found[what] != op[what]]
        problems += [f"op {number} ({op['op']}): {difference}" for difference in differing]
    replay.cache.check()
    if replay.remembered() != case["final_cached"]:
        problems.append(f"at the end: cached {replay.remembered()}, recorded {case['final_cached']}")
    return problems


class _Replay:
    def __init__(self, case: dict[str, Any]) -> None:
        self.page: int = case["page_size"]
        eviction = EVICTIONS.get(case["eviction_policy"])(**_config(case["eviction_config"]))
        self.cache = RadixCache(self.page, eviction=eviction)
        self.inserted: list[list[int]] = []
        self.locks: dict[str, RadixLock] = {}
        self.play_op: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "insert": self.insert,
            "match": self.match,
            "unlock": self.unlock,
            "evict": self.evict,
        }

    def play(self, op: dict[str, Any]) -> dict[str, Any]:
        """What came of it, under the names of the record."""
        found = self.play_op[op["op"]](op)
        evictable, protected = self.cache.evictable * self.page, self.cache.referenced * self.page
        return found | {"evictable": evictable, "protected": protected, "total": evictable + protected}

    def insert(self, op: dict[str, Any]) -> dict[str, Any]:
        chain = self.chain(op)
        self.inserted.append(chain)
        return {"matched": self.cache.insert(chain, priority=op["priority"]) * self.page}

    def match(self, op: dict[str, Any]) -> dict[str, Any]:
        chain = self.chain(op)
        lock = self.cache.lock(chain)
        if "lock" in op:
            self.locks[op["lock"]] = lock
        else:
            self.cache.release(lock)  # to look makes a prefix recent in SGLang
        return {"matched": lock.num_committed * self.page}

    def unlock(self, op: dict[str, Any]) -> dict[str, Any]:
        self.cache.release(self.locks.pop(op["lock"]))
        return {}

    def evict(self, op: dict[str, Any]) -> dict[str, Any]:
        evicted = self.cache.evict(-(-op["num_tokens"] // self.page))
        return {"evicted": evicted * self.page, "cached_after": self.remembered()}

    def remembered(self) -> list[int]:
        return [self.cache.num_cached_blocks(chain) * self.page for chain in self.inserted]

    def chain(self, op: dict[str, Any]) -> list[int]:
        tokens = tuple(token for start, count in op["tokens"] for token in range(start, start + count))
        space = op.get("extra_key"), op.get("cache_salt") or None  # an empty salt is none, an empty extra key is one
        namespace = "" if space == (None, None) else repr(space)
        return list(apply_namespace(PromptTokenIds(tokens).block_keys(self.page), namespace))


def _config(recorded: dict[str, Any] | str | None) -> dict[str, Any]:
    """The policy's parameters, as JSON or as SGLang's flag has them."""
    config: dict[str, Any] = json.loads(recorded) if isinstance(recorded, str) else recorded or {}
    return config
