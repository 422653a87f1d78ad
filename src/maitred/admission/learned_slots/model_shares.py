"""The learned slots of one engine, shared among the models that it serves (a base model and its adapters count as one).

The engine has one batch for all of them, so its slots are shared by max-min fairness: no model gets more than it asks for, and
what is left over is offered to each, because it may ask next. Shares are set anew at each look, so what two idle models take at
the same instant may exceed the slots until the next one.

*Example.* 16 slots; `m` asks for 40, `a` for 3, `b` for none. A third of 16 is 5: `a` gets its 3, and `m` the other 13.
`b` is offered 1, so that its first request finds a way in.
"""

from __future__ import annotations

from collections.abc import Mapping


def share_slots(slots: int, asked: Mapping[str, int]) -> dict[str, int]:
    """Return how many of `slots` each model is offered, at least 1; `asked` is how many each could use now. O(n log n)."""
    left, shares = slots, {}
    # The smallest demand first: what it leaves of an equal share is divided among the larger ones.
    by_demand = sorted(asked, key=lambda model: (asked[model], model))
    for place, model in enumerate(by_demand):
        shares[model] = min(asked[model], -(-left // (len(by_demand) - place)))
        left -= shares[model]
    return {model: max(1, share + left) for model, share in shares.items()}
