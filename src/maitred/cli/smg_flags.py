"""SMG's flags of `maitred serve` that are no second name of one of ours.

A start script for SMG's router works with `maitred serve` in its place, as far as both have the same functions. `--worker-urls`
takes several values behind one name, as there: `spread_values` gives each a name of its own before the command line is parsed.

    --worker-urls http://a:1 http://b:1      ->  --worker-urls http://a:1 --worker-urls http://b:1
    --policy cache_aware                     ->  --routing-policy cache-aware
    --balance-abs-threshold 32               ->  --routing-policy "cache-aware(balance_abs_threshold=32)"
    --disable-retries                        ->  --max-attempts 1
    --retry-max-retries 5                    ->  --max-attempts 6
    --disable-circuit-breaker                ->  gateway.ejection.enabled: false
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from maitred.cli.flags import SWITCH, flag, set_value
from maitred.cli.gateway_flags import BACKENDS, GATEWAY_ADMISSION
from maitred.cli.program_flags import ProgramFlags, program_values
from maitred.core.errors import ConfigError

WORKER_URLS: Final = "--worker-urls"
_POLICY, _ATTEMPTS, _MODE = "routing.policy", "gateway.max_attempts", "admission.mode"


@dataclass(frozen=True, kw_only=True)
class SmgFlags(ProgramFlags):
    """SMG's flags about backends and admission."""

    worker_urls: Annotated[
        list[str] | None, flag(BACKENDS.panel, "The same as --backend, for several at once.", "URL...", name=WORKER_URLS)
    ] = None
    policy: Annotated[
        str | None, flag(BACKENDS.panel, "The same as --routing-policy, or SMG's name for one that does the same.", "POLICY")
    ] = None
    cache_threshold: Annotated[
        float | None, flag(BACKENDS.panel, "cache_aware: share of a prompt beyond which a prefix is followed.", "SHARE")
    ] = None
    balance_abs_threshold: Annotated[
        int | None,
        flag(BACKENDS.panel, "cache_aware: requests in flight beyond the fewest up to which a prefix is followed.", "N"),
    ] = None
    balance_rel_threshold: Annotated[
        float | None,
        flag(
            BACKENDS.panel, "cache_aware: multiple of the fewest requests in flight up to which a prefix is followed.", "FACTOR"
        ),
    ] = None
    prefix_token_count: Annotated[
        int | None, flag(BACKENDS.panel, "prefix_hash: tokens at the beginning of a prompt that count.", "TOKENS")
    ] = None
    prefix_hash_load_factor: Annotated[
        float | None,
        flag(
            BACKENDS.panel, "prefix_hash: multiple of the mean requests in flight up to which a prefix is followed.", "FACTOR"
        ),
    ] = None
    prefix_hash_balance_abs_threshold: Annotated[
        int | None,
        flag(BACKENDS.panel, "prefix_hash: requests in flight beyond the mean up to which a prefix is followed.", "N"),
    ] = None
    assignment_mode: Annotated[
        str | None, flag(BACKENDS.panel, "manual: how a new routing key is placed, min_load or random.", "MODE")
    ] = None
    disable_retries: Annotated[bool | None, flag(BACKENDS.panel, "The same as --max-attempts 1.", SWITCH)] = None
    retry_max_retries: Annotated[int | None, flag(BACKENDS.panel, "The same as --max-attempts with one more.", "N")] = None
    retry_initial_backoff_ms: Annotated[
        float | None, flag(BACKENDS.panel, "gateway.retry.initial_backoff_secs in milliseconds.", "MS")
    ] = None
    retry_max_backoff_ms: Annotated[
        float | None, flag(BACKENDS.panel, "gateway.retry.max_backoff_secs in milliseconds.", "MS")
    ] = None
    disable_circuit_breaker: Annotated[
        bool | None, flag(BACKENDS.panel, "Never eject a backend: gateway.ejection.enabled: false.", SWITCH)
    ] = None
    priority_scheduler_enabled: Annotated[
        bool | None, flag(GATEWAY_ADMISSION.panel, "The same as --admission priority.", SWITCH)
    ] = None


def _set_routing_policy(values: dict[str, object], name: str | None, given: Mapping[str, object]) -> None:
    """Put the routing policy that `name` and the flags of its parameters stand for into `values`. Raises ConfigError for a
    policy of SMG's that nothing here does, and for flags of another policy."""
    from maitred.compat.smg import MISSING_POLICIES, ROUTING_POLICIES, RoutingPolicy

    if name is not None and name in MISSING_POLICIES:
        hint = f"the nearest is --policy {shlex.quote(MISSING_POLICIES[name])}"
        raise ConfigError(f"{name} is a routing policy of SMG's that maitred does not have", where="--policy", hint=hint)
    ours = {policy.name: policy for policy in ROUTING_POLICIES.values()}
    policy = ROUTING_POLICIES.get(name or "") or ours.get(name or "") or RoutingPolicy(name or "")
    for flag_name in given:
        if flag_name not in policy.flags:
            owners = [smg for smg, other in ROUTING_POLICIES.items() if flag_name in other.flags]
            with_what = f"with --policy {name}" if name else "without --policy"
            raise ConfigError(f"has no effect {with_what}", where=flag_name, hint=f"it is for --policy {owners[0]}")
    if name is not None:
        set_value(values, _POLICY, policy.spec(given), "--policy", "--routing-policy")


def _policy_flags(flags: SmgFlags) -> dict[str, object]:
    """Return the values of the flags that are parameters of a routing policy, by flag. Raises ConfigError for a mode of
    assignment that nothing here does."""
    from maitred.compat.smg import ASSIGNMENT_MODES, ROUTING_POLICIES

    names = [name for policy in ROUTING_POLICIES.values() for name in policy.flags]
    given = {name: getattr(flags, name.strip("-").replace("-", "_")) for name in names}
    mode = given["--assignment-mode"]
    if mode is not None and mode not in ASSIGNMENT_MODES:
        raise ConfigError(f"unknown mode {mode!r}", where="--assignment-mode", hint=f"one of {', '.join(ASSIGNMENT_MODES)}")
    given["--assignment-mode"] = ASSIGNMENT_MODES.get(mode)
    return {name: value for name, value in given.items() if value is not None}


def _set_retries(values: dict[str, object], flags: SmgFlags) -> None:
    """Put what SMG's flags say about retries into `values`."""
    if flags.retry_max_retries is not None:
        name = "--retry-max-retries"
        if flags.retry_max_retries < 0:
            raise ConfigError("must be at least 0", where=name)
        if flags.disable_retries and flags.retry_max_retries:
            raise ConfigError("contradicts --disable-retries", where=name, hint="give one of them")
        set_value(values, _ATTEMPTS, flags.retry_max_retries + 1, name, "--max-attempts")
    for key, ms in (("initial", flags.retry_initial_backoff_ms), ("max", flags.retry_max_backoff_ms)):
        if ms is not None:
            values[f"gateway.retry.{key}_backoff_secs"] = ms / 1000


def smg_values(flags: SmgFlags) -> dict[str, object]:
    """Return the values of keys that `flags` give, with those of the rows of the command and of programs. Raises ConfigError
    for flags that contradict each other."""
    values = program_values(flags)
    if flags.worker_urls:
        given = values.get("gateway.backends")
        values["gateway.backends"] = [*(given if isinstance(given, list) else []), *flags.worker_urls]
    _set_routing_policy(values, flags.policy, _policy_flags(flags))
    if flags.disable_retries:
        set_value(values, _ATTEMPTS, 1, "--disable-retries", "--max-attempts")
    _set_retries(values, flags)
    if flags.disable_circuit_breaker:
        values["gateway.ejection.enabled"] = False
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
