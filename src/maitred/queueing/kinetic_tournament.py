"""A kinetic tournament: the largest of many ratios that grow with a clock, without computing all of them again.

The ratio of player i at clock c is (c - since) / size, a line in c. Players meet in a knock-out tree. Each match remembers its
winner and the clock at which its result, or that of any match below it, will be another (`_due`). So when the clock advances,
only the matches that are due are played again. Where a player is added, removed or changed, the matches on its path are due at
once, and are played when the winner is asked for: a match that several such players share is played once.

For example, `long` has waited since 0 with size 100, and `short` since 50 with size 20. At clock 50 `long` leads with 50/100 to
0/20. Its lead, multiplied out, is 50 * 20 - 0 * 100 = 1000, and shrinks by the difference of the sizes, 80, with each tick: the
match is due at 50 + 1000 / 80 = 62.5, so at the whole clock 63, where 63/100 < 13/20.

A match turns at most once while its two players stay, because the ratio of the smaller one grows faster. So n players turn O(n
log n) matches in all, however long the clock runs. Ratios are compared crosswise in integers, so ties are exact; they go to the
smaller `tie_break`.

This module is compiled with mypyc where a build asks for it (tools/compile.py).
"""

from __future__ import annotations

from typing import Generic, TypeVar

from maitred.core.contracts import SortKey

P = TypeVar("P")

_NEVER = 1 << 62
_NOW = -1


class Player(Generic[P]):
    """An item that has waited since the clock `since` and has a `size` of at least 1."""

    leaf: int = -1
    """The place of the player in the tree."""

    def __init__(self, item: P, since: int, size: int, tie_break: SortKey) -> None:
        self.item = item
        self.since = since
        self.size = size
        self.tie_break = tie_break


class KineticTournament(Generic[P]):
    """Players, of which the one with the largest ratio wins. The clock never goes back."""

    def __init__(self) -> None:
        self._leaves = 16
        """How many places for players there are: a power of two."""
        self._winners: list[Player[P] | None] = [None] * 32
        """A complete binary tree of matches: those below match i are 2i and 2i + 1. The second half are the players."""
        self._due: list[int] = [_NEVER] * 32
        """The clock from which on each match must be played again."""
        self._free = list(range(31, 15, -1))
        """The places without a player."""
        self._clock = 0

    def winner(self) -> P | None:
        """Return the item with the largest ratio, or None if there is no player."""
        if self._due[1] <= self._clock:
            self._replay_due(1)
        winner = self._winners[1]
        return None if winner is None else winner.item

    def add(self, player: Player[P]) -> None:
        """Let `player` take part."""
        if not self._free:
            self._grow()
        player.leaf = self._free.pop()
        self._winners[player.leaf] = player
        self.mark_changed(player)

    def remove(self, player: Player[P]) -> None:
        """Let `player` take part no more."""
        self._winners[player.leaf] = None
        self._free.append(player.leaf)
        self.mark_changed(player)

    def mark_changed(self, player: Player[P]) -> None:
        """Note that the size of `player` has changed."""
        due, match = self._due, player.leaf >> 1
        while match and due[match] != _NOW:  # above a match that is due at once, all are
            due[match] = _NOW
            match >>= 1

    def advance(self, clock: int) -> None:
        """Set the clock."""
        self._clock = clock

    def _replay_due(self, match: int) -> None:
        """Play the due matches below `match`, then `match` itself."""
        due, clock, below = self._due, self._clock, 2 * match
        if due[below] <= clock:
            self._replay_due(below)
        if due[below + 1] <= clock:
            self._replay_due(below + 1)
        self._play_match(match)

    def _play_match(self, match: int) -> None:
        """Find the winner of `match` as of now, and the clock at which the result may be another."""
        winners, due, clock = self._winners, self._due, self._clock
        leader, other = winners[2 * match], winners[2 * match + 1]
        next_due = min(due[2 * match], due[2 * match + 1])
        if leader is None or other is None:
            winners[match] = leader or other
            due[match] = next_due
            return
        # Both ratios times both sizes: the comparison needs no division, so nothing is rounded.
        lead = (clock - leader.since) * other.size - (clock - other.since) * leader.size
        if lead < 0 or (lead == 0 and other.tie_break < leader.tie_break):
            leader, other, lead = other, leader, -lead
        winners[match] = leader
        gain = leader.size - other.size
        if gain > 0:  # the one behind catches up by `gain` with each tick
            # Where the lead becomes 0 the tie decides: a leader that wins ties is overtaken one tick later.
            overtaken_at = clock + lead // gain + (lead % gain > 0 or leader.tie_break < other.tie_break)
            next_due = min(next_due, overtaken_at)
        due[match] = next_due

    def _grow(self) -> None:
        """Double the number of places, and play all matches anew."""
        players = self._winners[self._leaves :]
        self._leaves *= 2
        self._winners = [None] * (2 * self._leaves)
        self._due = [_NEVER] * (2 * self._leaves)
        self._free = list(range(2 * self._leaves - 1, self._leaves + len(players) - 1, -1))
        # It grows only when no place is free, so every place holds a player. Doubling keeps the cost at O(1) per player
        # on average.
        for leaf, player in enumerate(players, start=self._leaves):
            assert player is not None
            player.leaf = leaf
            self._winners[leaf] = player
        for match in range(self._leaves - 1, 0, -1):
            self._play_match(match)
