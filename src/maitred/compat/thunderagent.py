"""ThunderAgent's rules of programs, as it documents them, where they differ from ours.

Programs are paused and resumed at ticks only, the smallest first, however long a large one has waited. What a backend reports
is believed.
"""

from __future__ import annotations

from typing import Final

from maitred.programs.rules import ProgramRules

PROGRAM_RULES: Final = ProgramRules(
    acting_estimator="fixed",
    acts_at_events=False,
    knows_one_context=True,
    keeps_headroom=False,
    bounds_waiting=False,
    refuses_oversized=False,
    charges_acting_share=False,
    limits_reports=False,
    places_by_class=False,
    spares_victims=False,
    resume_rounds=1,
    pauses_marked_at_once=True,
)
