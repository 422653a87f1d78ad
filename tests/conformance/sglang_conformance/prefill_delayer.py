"""Run the recorded negotiations of the prefill delayer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from maitred.compat.sglang.prefill_delayer import DelayRules, PrefillDelayer, RankReport


class Step(msgspec.Struct):
    now: float
    ranks: Sequence[tuple[int, int, int, int, int, int]]
    """Of each rank what it says, its own first."""
    max_running_requests: int
    allow: bool
    reason: str
    delayed_count_after: int | None


class Case(msgspec.Struct):
    max_delay_passes: int
    token_usage_low_watermark: float | None
    queue_min_ratio: float | None
    max_delay_ms: float
    prefill_max_requests: int | None
    attn_dp_enabled: bool
    num_dp_ranks: int
    steps: Sequence[Step]


def run_case(raw: bytes) -> Iterator[str]:
    """Yield the differences from what was recorded, one line each."""
    case = msgspec.json.decode(raw, type=Case)
    rules = DelayRules(
        max_delay_passes=case.max_delay_passes,
        low_watermark=case.token_usage_low_watermark,
        queue_min_ratio=case.queue_min_ratio,
        max_delay=round(case.max_delay_ms * 1000),
        prefill_max_requests=case.prefill_max_requests,
        num_ranks=case.num_dp_ranks,
        has_attention_dp=case.attn_dp_enabled,
    )
    delayer = PrefillDelayer(rules)
    for number, step in enumerate(case.steps):
        now = round(step.now * 1_000_000)
        ranks = [
            RankReport(bool(has_request), bool(is_forced), running, most, waiting, bool(is_late))
            for has_request, is_forced, running, most, waiting, is_late in step.ranks
        ]
        overdue = delayer.is_overdue(now)
        answer = delayer.negotiate(ranks, step.max_running_requests, now)
        got = {
            "queue_timeout": overdue,
            "allow": answer.allows_prefill,
            "reason": answer.reason,
            "delayed_count_after": delayer.num_delayed or None,
        }
        wanted = {
            "queue_timeout": bool(step.ranks[0][5]),
            "allow": step.allow,
            "reason": step.reason,
            "delayed_count_after": step.delayed_count_after,
        }
        yield from (
            f"step {number} {name}: {value} expected, {got[name]} came" for name, value in wanted.items() if got[name] != value
        )
