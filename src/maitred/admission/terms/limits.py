"""The keys of `admission.limits`, and what clients are told of the limits in force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec

from maitred.admission.terms.tenants import tenant_problem
from maitred.core.units import Micros

EACH: Final = "*"
"""In a rule: each tenant, or each model, for itself."""
MAX_LIMIT: Final = 10**15
_Amount = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
LIMIT_KEYS: Final = ("requests_per_minute", "tokens_per_minute", "requests_per_day", "tokens_per_day")


class LimitRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A limit of requests and tokens. Null: no limit. Raises ValueError for a value out of range."""

    tenant: str = EACH
    """The tenant that is limited: `auth:ID`, `header:VALUE`, `ip:ADDRESS` or `anonymous`; `*`: each one for itself that no rule
    with the same `model` names."""
    model: str | None = None
    """The model that is limited (of an adapter, its base model); `*`: each one for itself that no rule names. Null: all models
    together."""
    requests_per_minute: int | None = None
    """Requests within any 60 seconds."""
    tokens_per_minute: int | None = None
    """Tokens of prompts and answers within any 60 seconds."""
    requests_per_day: int | None = None
    """Requests within any 24 hours."""
    tokens_per_day: int | None = None
    """Tokens of prompts and answers within any 24 hours."""

    def __post_init__(self) -> None:
        given = [limit for key in LIMIT_KEYS if (limit := getattr(self, key)) is not None]
        if not given:
            raise ValueError(f"a limit needs one of {', '.join(LIMIT_KEYS)}")
        if not all(0 <= limit <= MAX_LIMIT for limit in given):
            raise ValueError(f"limits must be from 0 to {MAX_LIMIT}")
        problem = None if self.tenant == EACH else tenant_problem(self.tenant)
        if problem:
            raise ValueError(problem)


def check_rules(rules: Sequence[LimitRule]) -> None:
    """Raise ValueError if two rules are of the same tenant and model."""
    seen = set[tuple[str, str | None]]()
    for rule in rules:
        if (rule.tenant, rule.model) in seen:
            model = "all models" if rule.model is None else f"model {rule.model!r}"
            raise ValueError(f"limits: two rules are for tenant {rule.tenant!r} and {model} (make one of them)")
        seen.add((rule.tenant, rule.model))


class UsageRecord(msgspec.Struct, frozen=True, array_like=True):
    """What one window of a limit has counted, for another process."""

    kind: Literal["requests_per_minute", "tokens_per_minute", "requests_per_day", "tokens_per_day"]
    tenant: str
    model: str | None
    """None: all models together."""
    aged: list[tuple[_Amount, _Amount]]
    """The age of each of its slots (µs), oldest first, and what was counted in it."""

    @property
    def key(self) -> tuple[str, str, str | None]:
        """What is counted."""
        return self.kind, self.tenant, self.model

    def later(self, span: Micros) -> UsageRecord:
        """Return it as it is after `span`."""
        return UsageRecord(self.kind, self.tenant, self.model, [(age + span, amount) for age, amount in self.aged])


class LimitState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One limit, as its client is told of it."""

    limit: int
    remaining: int
    """What may still be taken at once; 0 too where more was taken than is allowed."""
    reset: Micros
    """Time until all of the limit is there again if nothing more is taken, µs."""


class LimitStatus(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The tightest limits that hold for a request, right after it was counted."""

    requests: LimitState | None = None
    """Of its limits of requests, that with the fewest remaining."""
    tokens: LimitState | None = None
    """Likewise of tokens."""
