"""Shared tokens are counted as if all contents were compared anew after each change."""

from __future__ import annotations

from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from maitred.programs import ProgramAction, ProgramDecision, ProgramReason
from maitred.sim.shared_tokens import SharedTokens


class Keys:
    """A prompt with known keys."""

    def __init__(self, keys: list[int]) -> None:
        self.keys = keys

    def block_keys(self, block_size: int) -> list[int]:
        return self.keys


def counted(contents: dict[int, list[int]], places: dict[int, int | None], instance: int) -> int:
    counts = Counter(key for program, keys in contents.items() if places.get(program) == instance for key in keys)
    return sum(16 * (count - 1) for count in counts.values())


@pytest.mark.parametrize("seed", range(20))
def test_the_count_is_that_of_all_contents(seed: int) -> None:
    rng, shared = Random(seed), SharedTokens(16)
    contents: dict[int, list[int]] = {}
    places: dict[int, int | None] = {}
    for _ in range(300):
        program = rng.randrange(8)
        if rng.random() < 0.6 or program not in contents:
            base = list(rng.choice(list(contents.values()) or [[]]))
            keys = base[: rng.randrange(len(base) + 1)]
            for _ in range(rng.randrange(6)):  # chained: a key stands for all before it, too
                keys.append(hash((tuple(keys), rng.randrange(3))))
            contents[program] = keys
            shared.set_content(program_numbered(program), Keys(keys), "")
        else:
            action = rng.choice([ProgramAction.RESUME, ProgramAction.PAUSE, ProgramAction.END])
            instance = rng.randrange(2) if action is ProgramAction.RESUME else None
            shared.on_decisions([ProgramDecision(0, program, action, ProgramReason.ROOM, None, instance)])
            places[program] = instance
            if action is ProgramAction.END:
                del contents[program]
        for instance in range(2):
            assert shared.tokens(instance) == counted(contents, places, instance)


def program_numbered(serial: int) -> Any:
    return SimpleNamespace(serial=serial)
