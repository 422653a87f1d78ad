"""The kinetic tournament: its winner is the largest ratio, and matches are played only when they may turn."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred import is_compiled
from maitred.queueing.kinetic_tournament import KineticTournament, Player


def test_the_smaller_one_overtakes_at_the_clock_at_which_its_ratio_is_larger() -> None:
    tournament: KineticTournament[str] = KineticTournament()
    tournament.add(Player("long", 0, 100, (0,)))
    tournament.add(Player("short", 50, 20, (1,)))
    winners = []
    for clock in (50, 62, 63, 1_000):  # c / 100 = (c - 50) / 20 at 62.5
        tournament.advance(clock)
        winners.append(tournament.winner())
    assert winners == ["long", "long", "short", "short"]


def test_a_tie_goes_to_the_smaller_one() -> None:
    for ties, winner in (((0, 1), "long"), ((1, 0), "short")):
        tournament: KineticTournament[str] = KineticTournament()
        tournament.add(Player("long", 0, 100, (ties[0],)))
        tournament.add(Player("short", 40, 20, (ties[1],)))
        tournament.advance(40)
        assert tournament.winner() == "long"
        tournament.advance(50)  # 50 / 100 = 10 / 20
        assert tournament.winner() == winner


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_the_winner_is_the_largest_ratio(seed: int) -> None:
    random, clock = Random(seed), 0
    tournament: KineticTournament[int] = KineticTournament()
    players: list[Player[int]] = []
    for number in range(120):
        happens = random.randrange(6)
        if happens < 3 or not players:
            players.append(Player(number, random.randint(0, clock), random.randint(1, 30), (random.randrange(5), number)))
            tournament.add(players[-1])
        elif happens == 3:
            tournament.remove(players.pop(random.randrange(len(players))))
        elif happens == 4:
            player = random.choice(players)
            player.size = random.randint(1, 30)
            tournament.mark_changed(player)
        clock += random.choice([0, 0, 1, 50])
        tournament.advance(clock)
        best = min(players, key=lambda p: (-Fraction(clock - p.since, p.size), p.tie_break), default=None)
        assert tournament.winner() == (None if best is None else best.item)


@pytest.mark.skipif(is_compiled(), reason="counts matches in a class of its own, which compiled code does not allow")
def test_as_the_clock_goes_on_few_matches_are_played_again() -> None:
    played = 0

    class Counting(KineticTournament[int]):
        def _play_match(self, match: int) -> None:
            nonlocal played
            played += 1
            super()._play_match(match)

    random, tournament = Random(3), Counting()
    for number in range(4_096):
        tournament.add(Player(number, number, random.randint(1, 10_000), (number,)))
    tournament.advance(4_096)
    assert tournament.winner() is not None
    played = 0
    for clock in range(4_096, 4_096 + 1_000 * 500, 500):
        tournament.advance(clock)
        tournament.winner()
    assert played < 1_000 * 100, "of 4,095 matches in each of 1,000 passes"
