"""SMG's flags of `maitred serve` that are no second name of one of ours.

A start script for SMG's router works with `maitred serve` in its place, as far as both have the same functions. `--worker-urls`
takes several values behind one name, as there: `spread_values` gives each a name of its own before the command line is parsed.

    --worker-urls http://a:1 http://b:1      ->  --worker-urls http://a:1 --worker-urls http://b:1
    --policy cache_aware                     ->  --routing-policy weighted --routing-scorers prefix-affinity:2,load-balance:1
    --disable-retries                        ->  --max-attempts 1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from maitred.cli.config_flags import BACKENDS, GATEWAY_ADMISSION
from maitred.cli.flags import SWITCH, flag, set_value
from maitred.cli.program_flags import ProgramFlags, program_values

WORKER_URLS: Final = "--worker-urls"
_POLICY, _ATTEMPTS, _MODE = "routing.policy", "gateway.max_attempts", "admission.mode"


@dataclass(frozen=True, kw_only=True)
class SmgFlags(ProgramFlags):
    """SMG's flags about backends and admission."""

    worker_urls: Annotated[
        list[str] | None, flag(BACKENDS.panel, WORKER_URLS, "The same as --backend, for several at once.", "URL...")
    ] = None
    policy: Annotated[
        str | None,
        flag(BACKENDS.panel, "--policy", "The same as --routing-policy, or SMG's name for one that is near to it.", "POLICY"),
    ] = None
    disable_retries: Annotated[
        bool | None, flag(BACKENDS.panel, "--disable-retries", "The same as --max-attempts 1.", SWITCH)
    ] = None
    priority_scheduler_enabled: Annotated[
        bool | None,
        flag(GATEWAY_ADMISSION.panel, "--priority-scheduler-enabled", "The same as --admission priority.", SWITCH),
    ] = None


def _set_routing_policy(values: dict[str, object], name: str) -> None:
    """Put SMG's routing policy of this name into `values`, with the scorers that stand for it."""
    from maitred.compat.smg import ROUTING_POLICIES

    policy, scorers = ROUTING_POLICIES.get(name, (name, None))
    set_value(values, _POLICY, policy, "--policy", "--routing-policy")
    if scorers is not None:
        values.setdefault("routing.scorers", scorers)


def smg_values(flags: SmgFlags) -> dict[str, object]:
    """Return the values of keys that `flags` give, with those of the rows of the command and of programs. Raises ConfigError
    for flags that contradict each other."""
    values = program_values(flags)
    if flags.worker_urls:
        given = values.get("gateway.backends")
        values["gateway.backends"] = [*(given if isinstance(given, list) else []), *flags.worker_urls]
    if flags.policy is not None:
        _set_routing_policy(values, flags.policy)
    if flags.disable_retries:
        set_value(values, _ATTEMPTS, 1, "--disable-retries", "--max-attempts")
    if flags.priority_scheduler_enabled:
        set_value(values, _MODE, "priority", "--priority-scheduler-enabled", "--admission")
    return values


def spread_values(words: Sequence[str], name: str = WORKER_URLS) -> list[str]:
    """Return a command line in which each value behind `name` has that name before it."""
    return [*_spread(words, name)]


def _spread(words: Sequence[str], name: str) -> Iterator[str]:
    is_behind, has_value = False, False
    for word in words:
        if word.startswith("-"):
            is_behind, has_value = word == name, False
        elif is_behind:
            if has_value:
                yield name
            has_value = True
        yield word
