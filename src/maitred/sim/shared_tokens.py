"""Shared tokens: how many KV tokens of each instance several of its programs use together, counted by their contents.

The content of a program is the prompt of its last request, and the response to it where a later prompt contains that. It is a
chain of block keys (`core.request.PrefixKeys`). Each block counts once for each program at the instance that has it; what
exceeds one is shared.

    programs at one instance, blocks of 16 tokens        keys
    a                                                    1 2 3
    b                                                    1 2 4 5
    c                                                    1
    key 1 is there three times, key 2 twice: (2 + 1) · 16 = 48 tokens are shared

A key stands for its block and all before it, so a content that grows is compared with the one before by a single key. A change
costs as much as the blocks that come and go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from maitred.core.request import PrefixKeys
from maitred.kv.block_hashes import apply_namespace, common_length
from maitred.programs import Program, ProgramAction, ProgramDecision

_NO_KEYS: Final[Sequence[int]] = ()


class _Content:
    """What one program has in memory."""

    __slots__ = ("instance", "keys")

    def __init__(self) -> None:
        self.keys: Sequence[int] = _NO_KEYS
        self.instance: int | None = None
        """Where it is counted; None while it is paused."""


class SharedTokens:
    """The contents of all programs."""

    def __init__(self, block_size: int) -> None:
        """`block_size` is in tokens."""
        self._block_size = block_size
        self._contents: dict[int, _Content] = {}
        """By the serial number of the program."""
        self._counts: dict[int, dict[int, int]] = {}
        """For each instance, how many programs have a block."""
        self._shared_blocks: dict[int, int] = {}

    def tokens(self, instance: int) -> int:
        """Return the tokens that count more than once at an instance."""
        return self._shared_blocks.get(instance, 0) * self._block_size

    def set_content(self, program: Program, prefix: PrefixKeys | None, namespace: str) -> None:
        """Note what a program has in memory from now on. A content that is not known shares nothing."""
        content = self._contents.get(program.serial)
        if content is None:
            content = self._contents[program.serial] = _Content()
        before, after = content.keys, _NO_KEYS
        if prefix is not None:
            after = apply_namespace(prefix.block_keys(self._block_size), namespace)
        content.keys = after
        if content.instance is not None:
            common = common_length(before, after)
            self._remove(content.instance, before[common:])
            self._add(content.instance, after[common:])

    def on_decisions(self, decisions: Iterable[ProgramDecision]) -> None:
        """Follow programs from place to place."""
        for decision in decisions:
            action = decision.action
            if action is ProgramAction.GRANT or action is ProgramAction.RESUME:
                self._move(decision.program, decision.backend)
            elif action is ProgramAction.PAUSE:
                self._move(decision.program, None)
            elif action is ProgramAction.END:
                self._move(decision.program, None)
                self._contents.pop(decision.program, None)

    def _move(self, program: int, instance: int | None) -> None:
        content = self._contents.get(program)
        if content is None or content.instance == instance:
            return
        if content.instance is not None:
            self._remove(content.instance, content.keys)
        content.instance = instance
        if instance is not None:
            self._add(instance, content.keys)

    def _add(self, instance: int, keys: Sequence[int]) -> None:
        counts = self._counts.setdefault(instance, {})
        shared = 0
        for key in keys:
            count = counts.get(key, 0)
            counts[key] = count + 1
            shared += count > 0
        self._shared_blocks[instance] = self._shared_blocks.get(instance, 0) + shared

    def _remove(self, instance: int, keys: Sequence[int]) -> None:
        counts = self._counts[instance]
        shared = 0
        for key in keys:
            count = counts[key] - 1
            if count:
                counts[key] = count
                shared += 1
            else:
                del counts[key]
        self._shared_blocks[instance] -= shared
