"""Who has waited longest for its size, as the clock goes on: a kinetic tournament.

Player i's ratio at clock c is (c - since) / size, a line in c. Players meet in a knock-out tree, whose every match remembers
its winner and the clock at which any match below it will end differently. So when the clock goes on, only the matches that are
due are played again; and where a player comes, leaves or changes, those on its path are due at once, and are played when
somebody asks, however many players they have in common. A match can turn but once while its two players stay (the smaller
one's ratio grows faster), so n players turn O(n log n) matches in all, however long the clock runs.

All integers, compared crosswise: ties are ties. They go to the smaller `tie`.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from maitred.core.contracts import SortKey

P = TypeVar("P")

_NEVER = 1 << 62
_NOW = -1


class Player(Generic[P]):
    """Who plays: since which clock, and its size, at least 1."""

    leaf: int = -1

    def __init__(self, item: P, since: int, size: int, tie_break: SortKey) -> None:
        self.item = item
        self.since = since
        self.size = size
        self.tie_break = tie_break


class KineticTournament(Generic[P]):
    """Players by their ratio, the largest first. The clock never goes back."""

    def __init__(self) -> None:
        self._leaves = 16
        self._winners: list[Player[P] | None] = [None] * 32
        """A binary heap of matches: those of match i are 2i and 2i + 1; the second half are the players themselves."""
        self._due: list[int] = [_NEVER] * 32
        self._free = list(range(31, 15, -1))
        self._clock = 0

    def winner(self) -> P | None:
        """Who has the largest ratio; None if nobody plays."""
        if self._due[1] <= self._clock:
            self._replay_due(1)
        winner = self._winners[1]
        return None if winner is None else winner.item

    def add(self, player: Player[P]) -> None:
        if not self._free:
            self._grow()
        player.leaf = self._free.pop()
        self._winners[player.leaf] = player
        self.mark_changed(player)

    def remove(self, player: Player[P]) -> None:
        self._winners[player.leaf] = None
        self._free.append(player.leaf)
        self.mark_changed(player)

    def mark_changed(self, player: Player[P]) -> None:
        """Its size is another."""
        due, match = self._due, player.leaf >> 1
        while match and due[match] != _NOW:
            due[match] = _NOW
            match >>= 1

    def advance(self, clock: int) -> None:
        """The clock stands at `clock`."""
        self._clock = clock

    def _replay_due(self, match: int) -> None:
        """This match or one below it is due."""
        due, clock, below = self._due, self._clock, 2 * match
        if due[below] <= clock:
            self._replay_due(below)
        if due[below + 1] <= clock:
            self._replay_due(below + 1)
        self._play_match(match)

    def _play_match(self, match: int) -> None:
        winners, due, clock = self._winners, self._due, self._clock
        one, other = winners[2 * match], winners[2 * match + 1]
        soonest = min(due[2 * match], due[2 * match + 1])
        if one is None or other is None:
            winners[match] = one or other
            due[match] = soonest
            return
        lead = (clock - one.since) * other.size - (clock - other.since) * one.size
        if lead < 0 or (lead == 0 and other.tie_break < one.tie_break):
            one, other, lead = other, one, -lead
        winners[match] = one
        gain = one.size - other.size
        if gain > 0:  # per tick of the clock, for the one behind
            turn = clock + lead // gain + (lead % gain > 0 or one.tie_break < other.tie_break)
            soonest = min(soonest, turn)
        due[match] = soonest

    def _grow(self) -> None:
        players = self._winners[self._leaves :]
        self._leaves *= 2
        self._winners = [None] * (2 * self._leaves)
        self._due = [_NEVER] * (2 * self._leaves)
        self._free = list(range(2 * self._leaves - 1, self._leaves + len(players) - 1, -1))
        for leaf, player in enumerate(players, start=self._leaves):
            assert player is not None
            player.leaf = leaf
            self._winners[leaf] = player
        for match in range(self._leaves - 1, 0, -1):
            self._play_match(match)
