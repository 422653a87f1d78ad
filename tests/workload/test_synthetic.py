"""The synthetic workload: Poisson, reproducible, each quantity with a random stream of its own."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest

from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass
from maitred.workload import parse_class_mix, parse_tenant_mix, synthetic, with_class_mix, with_tenant_mix
from maitred.workload.transforms import with_timeout


def test_gaps_are_exponential_with_the_mean_of_the_rate() -> None:
    arrivals = [job.request.arrival for job in synthetic(100, 20_000)]
    gaps = [later - earlier for earlier, later in pairwise([0, *arrivals])]
    assert statistics.mean(gaps) == pytest.approx(10_000, rel=0.03)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(1, abs=0.03)
    assert statistics.median(gaps) == pytest.approx(6_931, rel=0.03)
    assert min(gaps) >= 0


def test_a_rate_of_many_per_microsecond_keeps_its_mean() -> None:
    last = list(synthetic(5e6, 20_000))[-1]
    assert last.request.arrival == pytest.approx(4_000, rel=0.03)


def test_same_seed_same_jobs_other_seed_other_jobs() -> None:
    def arrivals(seed: int) -> list[int]:
        return [job.request.arrival for job in synthetic(10, 50, seed=seed)]

    assert arrivals(1) == arrivals(1)
    assert arrivals(1) != arrivals(2)


def test_changing_the_answers_leaves_arrivals_and_prompts_alone() -> None:
    """Two runs that differ in one quantity differ in that quantity only."""
    short = list(synthetic(10, 50, input_tokens="normal:500,150", output_tokens=5))
    mixed = list(
        synthetic(10, 50, input_tokens="normal:500,150", output_tokens="lognormal:90,40", class_mix="bulk:1,default:1")
    )
    assert [job.request.arrival for job in short] == [job.request.arrival for job in mixed]
    assert [job.request.prompt_tokens for job in short] == [job.request.prompt_tokens for job in mixed]
    assert [job.output_tokens for job in short] != [job.output_tokens for job in mixed]


def test_ids_count_from_0_and_the_request_does_not_tell_the_length_of_the_answer() -> None:
    made = list(synthetic(10, 3, output_tokens=77))
    assert [job.request.id for job in made] == [0, 1, 2]
    assert {job.output_tokens for job in made} == {77}
    assert {job.request.max_output_tokens for job in made} == {None}


def test_known_jobs_stay_what_they_are() -> None:
    made = synthetic(10, 3, seed=42, input_tokens="normal:500,150", output_tokens="lognormal:90,40")
    assert [(job.request.arrival, job.request.prompt_tokens, job.output_tokens) for job in made] == [
        (108_839, 577, 64),
        (232_095, 559, 71),
        (242_693, 410, 112),
    ]


def test_classes_come_in_their_shares() -> None:
    classes = [job.request.priority_class for job in synthetic(10, 10_000, class_mix="interactive:3, bulk:7")]
    assert classes.count(PriorityClass.INTERACTIVE) == pytest.approx(3_000, abs=150)
    assert classes.count(PriorityClass.BULK) == 10_000 - classes.count(PriorityClass.INTERACTIVE)


def test_a_workload_can_be_given_other_classes_and_nothing_else() -> None:
    before = list(synthetic(10, 100))
    after = list(with_class_mix(synthetic(10, 100), parse_class_mix("bulk:1"), seed=1))
    assert {job.request.priority_class for job in after} == {PriorityClass.BULK}
    assert [job.request.arrival for job in after] == [job.request.arrival for job in before]


def test_tenants_come_in_their_shares_and_move_nothing_else() -> None:
    before = list(synthetic(10, 5_000, class_mix="bulk:1,default:1"))
    after = list(synthetic(10, 5_000, class_mix="bulk:1,default:1", tenant_mix="auth:acme:1, ip:::1:3"))
    tenants = [job.request.tenant for job in after]
    assert tenants.count("auth:acme") == pytest.approx(1_250, abs=120)
    assert tenants.count("ip:::1") == 5_000 - tenants.count("auth:acme")
    assert [(j.request.arrival, j.request.priority_class) for j in before] == [
        (j.request.arrival, j.request.priority_class) for j in after
    ]
    assert {job.request.tenant for job in before} == {""}
    assert list(with_tenant_mix(before, parse_tenant_mix("auth:acme:1,ip:::1:3"), seed=42)) == after


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("acme:1", "'acme' matches no tenant: write auth:acme, header:acme, ip:ADDRESS or anonymous"),
        ("auth:acme", "write it as auth:acme:0.3,auth:globex:0.7"),
        ("auth:acme:x", "the share of 'auth:acme' is 'x', not a number"),
        ("auth:acme:1,auth:acme:2", "tenant 'auth:acme' appears twice"),
        ("anonymous:0", "not all of them 0"),
    ],
)
def test_a_mix_of_tenants_that_no_policy_could_name_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="--tenant-mix") as raised:
        parse_tenant_mix(text, where="--tenant-mix")
    assert said in str(raised.value)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), 1e-9])
def test_a_rate_that_cannot_be_is_refused_at_once(rate: float) -> None:
    with pytest.raises(ConfigError, match=r"^rate: "):
        synthetic(rate, 1)


def test_other_mistakes_are_refused_at_once_under_their_names() -> None:
    with pytest.raises(ConfigError, match=r"^num_requests: -1 requests"):
        synthetic(1, -1)
    with pytest.raises(ConfigError, match=r"^output_tokens: "):
        synthetic(1, 1, output_tokens="long")
    with pytest.raises(ConfigError, match=r"^class_mix: "):
        synthetic(1, 1, class_mix="bulk")
    with pytest.raises(ConfigError, match=r"^tenant_mix: "):
        synthetic(1, 1, tenant_mix="acme:1")
    with pytest.raises(ConfigError, match=r"^num_requests: 1\.5 requests cannot be made \(a whole number from 0 to 1e\+12\)"):
        synthetic(1, 1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bulky:1", "did you mean 'bulk'?"),
        ("bulk", "no share"),
        ("bulk:x", "the share of 'bulk' is 'x', not a number"),
        ("bulk:", "the share of 'bulk' is '', not a number"),
        ("bulk:1,bulk:2", "twice"),
        ("bulk:0", "not all of them 0"),
        ("bulk:-1,default:2", "0 or more"),
        ("bulk:nan", "0 or more"),
        ("", "unknown class ''"),
    ],
)
def test_the_error_of_a_wrong_mix_names_the_correct_form(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="--class-mix") as raised:
        parse_class_mix(text, where="--class-mix")
    assert said in str(raised.value)


def test_prompts_share_their_prefix_and_nothing_else() -> None:
    """A prefix of 32 tokens is two blocks of 16; later blocks are not shared."""
    bare = [job.request.prompt_tokens for job in synthetic(rate=10, num_requests=3, input_tokens="uniform:100,200")]
    jobs = list(synthetic(rate=10, num_requests=3, input_tokens="uniform:100,200", prefix_tokens=32))

    assert [job.request.prompt_tokens for job in jobs] == [32 + tokens for tokens in bare]
    keys = [job.request.prefix.block_keys(16) for job in jobs if job.request.prefix is not None]
    assert [len(each) for each in keys] == [job.request.prompt_tokens // 16 for job in jobs]
    assert len({tuple(each[:2]) for each in keys}) == 1
    assert len({each[2] for each in keys}) == 3


def test_patience_begins_with_each_arrival() -> None:
    """`constant` arrivals at 2 per second are 500 ms apart; the timeout is 3 s."""
    jobs = list(with_timeout(synthetic(rate=2, num_requests=3, arrival="constant"), 3))

    assert [job.request.deadline for job in jobs] == [job.request.arrival + 3_000_000 for job in jobs]
    assert len({job.request.arrival for job in jobs}) == 3
