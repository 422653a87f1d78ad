"""The rules of programs in which flavours differ, by name.

`flavour` chooses them (`rules_of`). Nothing else looks at the flavour: the code asks for one rule. Ours stand here. Those of
other systems are added (`add_rules`) by `maitred.compat`, which stands above this room.

Example: a program of 50,000 tokens waits for a backend of 40,000. `refuses_oversized` has its request refused at once; with
ThunderAgent's rules it waits until `max_wait_secs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

ProgramsFlavour: TypeAlias = Literal["ours", "thunderagent"]


class ProgramRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of pausing and resuming programs."""

    acting_estimator: str = "learned"
    """The acting estimator where the configuration names none."""
    acts_at_events: bool = True
    """Whether programs are paused and resumed between ticks as well, as soon as something changes. Without it there is no
    minimum stay either."""
    knows_one_context: bool = False
    """Whether a program is as large as its last request, and not as all of its contexts that are in memory still."""
    keeps_headroom: bool = True
    """Whether a share of a backend's memory is left free when a program is placed beside others (`headroom`)."""
    bounds_waiting: bool = True
    """Whether programs that wait for long are served: by their age (`ageing_secs_per_1k_tokens`), by a backend that is held for
    one (`patience_secs`), by pausing others (`displace_secs`)."""
    refuses_oversized: bool = True
    """Whether a request that no backend could hold is refused at once."""
    charges_acting_share: bool = True
    """Whether a program that is resumed without a request needs what the acting estimator charges for it, if that is more than
    its tokens."""
    limits_reports: bool = True
    """Whether reported usage above what is possible is not believed."""
    places_by_class: bool = True
    """Whether programs of a higher class are placed first, and a program counts for nothing that is larger than what any one
    backend has left."""
    spares_victims: bool = True
    """Whether of the programs chosen to be paused those keep their place without which enough is freed."""
    resume_rounds: int = 4
    """Times that the resume pass of a tick is made at most, while it places programs."""
    pauses_marked_at_once: bool = False
    """Whether a program that was to be paused after its request is paused then, though the pressure may have passed."""


_RULES: Final[dict[ProgramsFlavour, ProgramRules]] = {"ours": ProgramRules()}


def add_rules(rules: Mapping[ProgramsFlavour, ProgramRules]) -> None:
    """Make the rules of other systems known, for the configurations that are made from now on."""
    _RULES.update(rules)


def rules_of(flavour: ProgramsFlavour) -> ProgramRules:
    """Return the rules that `flavour` names. Raises ValueError for those that are not known, or were not added."""
    try:
        return _RULES[flavour]
    except KeyError:
        known = ", ".join(_RULES)
        raise ValueError(f"there is no flavour {flavour!r} among {known} (import maitred.compat for those of others)") from None
