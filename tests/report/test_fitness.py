"""BLIS's one score for a run, by hand (`FIVE` in conftest)."""

from __future__ import annotations

import pytest

from maitred.core.errors import ConfigError
from maitred.report import fitness, parse_weights, summarise
from maitred.sim import Results


def test_the_score_is_the_weighted_sum(five: Results) -> None:
    summary = summarise(five)
    completed, tokens = summary.per_second(summary.total.completed), summary.per_second(summary.total.output_tokens)
    assert completed is not None
    assert tokens is not None
    score = fitness(summary, parse_weights("throughput:2, tokens_per_sec:1,p50_ttft:0.5,mean_e2e:0.25"))
    assert score.components == {
        "throughput": completed / (completed + 100),
        "tokens_per_sec": tokens / (tokens + 10_000),
        "p50_ttft": pytest.approx(1 / 301),
        "mean_e2e": pytest.approx(1 / 701),
    }
    assert score.score == pytest.approx(2 * completed / (completed + 100) + tokens / (tokens + 10_000) + 0.5 / 301 + 0.25 / 701)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("p99_tfft:1", "no component 'p99_tfft'.*p99_ttft"),
        ("throughput", "cannot read the weight 'throughput'"),
        ("throughput:-1", "cannot read the weight"),
        ("throughput:nan", "cannot read the weight"),
        ("throughput:1,throughput:1", "each once"),
    ],
)
def test_what_cannot_be_weighed(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_weights(text, where="--fitness-weights")
