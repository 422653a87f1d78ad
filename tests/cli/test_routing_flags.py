"""--routing-policy and --routing-scorers, of `maitred simulate` and `maitred serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

RUN = ["simulate", "--rate", "50", "--num-requests", "40", "--num-instances", "3", "--quiet"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--routing-policy", "power-of-two"],
        ["--routing-policy", "weighted", "--routing-scorers", "queue-depth:2,kv-utilization:2,load-balance:1"],
        ["--routing-policy", "session-affinity(round-robin)", "--tenant-mix", "auth:a:0.5,auth:b:0.5"],
    ],
)
def test_a_policy_is_taken_without_a_word(maitred: Any, flags: list[str]) -> None:
    result = maitred(*RUN, *flags)
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize(
    ("flags", "warning"),
    [
        (["--routing-scorers", "load-aware:1"], "routing scorers have no effect with least-loaded"),
        (["--routing-policy", "weighted"], "the scorer precise-prefix-cache looks at the prefix caches of the instances"),
        (
            ["--routing-policy", "weighted", "--routing-scorers", "prefix-affinity:1", "--enable-prefix-caching"],
            "the scorer prefix-affinity looks at what prompts say, which is not known here",
        ),
        (["--routing-policy", "session-affinity"], "session-affinity: no request names a program, routing key or tenant here"),
    ],
)
def test_a_flag_without_effect_is_a_warning(maitred: Any, flags: list[str], warning: str) -> None:
    result = maitred(*RUN, *flags)
    assert result.code == 0
    assert result.err.startswith(f"maitred: warning: {warning}")
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("command", [RUN, ["serve", "--backend", "http://127.0.0.1:9", "--strict-config"]])
@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--routing-policy", "powr-of-two"], "--routing-policy: routing.policy: unknown routing policy 'powr-of-two'"),
        (
            ["--routing-scorers", "queu-depth:2"],
            "--routing-scorers: routing.scorers: unknown scorer 'queu-depth' (did you mean",
        ),
        (
            ["--routing-scorers", "queue-depth"],
            "--routing-scorers: routing.scorers: 'queue-depth' has no weight (write NAME:WEI",
        ),
    ],
)
def test_a_mistake_names_the_flag(maitred: Any, command: list[str], flags: list[str], error: str) -> None:
    result = maitred(*command, *flags)
    assert result.code == 2
    assert result.err.startswith(f"maitred: error: {error}")
    assert len(result.err.splitlines()) == 1


def test_a_mistake_in_a_file_names_its_line(maitred: Any, tmp_path: Path) -> None:
    path = tmp_path / "maitred.yaml"
    path.write_text("routing:\n  policy: weighted\n  scorers:\n    - queue-depth:2\n    - {name: load-balance, weight: 0}\n")
    result = maitred("check", str(path))
    assert result.code == 2
    assert f"{path}:3: routing.scorers: the weight of 'load-balance' is 0" in result.err
    path.write_text("routing: {policy: weighted, scorers: [queue-depth:2, {name: load-balance, weight: 1}]}\n")
    assert maitred("check", str(path)).code == 0
