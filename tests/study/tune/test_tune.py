"""`maitred tune`: the space, the score, the search, and what is told of recorded traffic."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from maitred.admission import AdmissionConfig
from maitred.config.sources import ConfigSources
from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass
from maitred.sim import Outcome
from maitred.study.tune.goal import Part, Score, judge, parse_limit
from maitred.study.tune.rules import Rules
from maitred.study.tune.search import Halving, num_candidates
from maitred.study.tune.space import Point, check_entry, default_space, settings_of, vary
from maitred.study.what_if.recorded import RecordedRequest, read_recorded
from maitred.study.what_if.world import ReplayedRun, ReplayWorld

sys.path.append(str(Path(__file__).parents[1] / "what_if"))
from recorded_runs import CLASSES, candidate, mixed_jobs, write_run

SLO = "interactive.ttft_p99_ms <= 250"
RESERVED = "admission.classes.interactive.reserved_per_slot"
KEPT = (
    "gateway:\n  backends: [http://engine-0, http://engine-1]\nadmission: {mode: priority, classes: {bulk: {queue_size: 3}}}\n"
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log and a record of 700 requests that wait for 8 slots at two engines."""
    folder = tmp_path_factory.mktemp("recorded")
    write_run(folder, mixed_jobs(700, 75_000), candidate())
    return folder


def arguments(folder: Path, *more: object) -> tuple[object, ...]:
    return ("tune", folder / "decisions.jsonl", "--record", folder / "record.csv", *more)


def run_of(ttft: Sequence[float], e2e: Sequence[float]) -> ReplayedRun:
    """Return a run of requests of which these times are known, in ms; NaN: it was not served."""
    times = np.array(e2e) * 1000
    outcome = np.where(np.isnan(times), Outcome.REJECTED, Outcome.COMPLETED).astype(np.int8)
    zeros = np.zeros(len(times))
    return ReplayedRun(np.array(ttft) * 1000, times, zeros, times, outcome, np.zeros(len(times), dtype=np.int8))


def requests_of(count: int) -> list[RecordedRequest]:
    """Return requests of which every second one is a chat."""
    usual: dict[str, Any] = {"prompt_tokens": 1, "output_tokens": 1, "max_output_tokens": None, "stream": True, "model": "m"}
    more = {"tenant": "", "program": "", "parent_program": "", "continues": None, "outcome": "completed", "cached_tokens": 0}
    rest = {"backend": 0, "sent": 0, "ttft": 0, "e2e": 0, "client_left": False}
    given = [CLASSES[i % 2] for i in range(count)]
    return [RecordedRequest(arrival=i, asked=c, given=c, **usual, **more, **rest) for i, c in enumerate(given)]


def test_the_score_is_the_excess_of_limits_and_then_the_price_of_the_classes() -> None:
    today = run_of([600, 100] * 50, [1000, 1000] * 50)
    part = Part(requests_of(100), np.ones(100, dtype=bool), [parse_limit("interactive.ttft_p99_ms <= 500")], today)
    assert part.score(today) == Score(pytest.approx(0.2), 1.0)
    other = run_of([400, 100] * 50, [800, 1300] * 50)
    assert part.score(other) == Score(0.0, pytest.approx(1.05))
    assert part.score(other) < part.score(today)


def test_refusing_requests_helps_no_limit() -> None:
    today = run_of([600, 100] * 50, [1000, 1000] * 50)
    part = Part(requests_of(100), np.ones(100, dtype=bool), [parse_limit("interactive.ttft_p99_ms <= 500")], today)
    no_chats = run_of([np.nan, 100] * 50, [np.nan, 1000] * 50)
    assert part.score(no_chats) > part.score(today)
    # No limit names bulk work; a half of it is refused, and 1 % may be.
    less_bulk = run_of([400, 100, 400, np.nan] * 25, [800, 500, 800, np.nan] * 25)
    assert part.score(less_bulk).excess == pytest.approx(10 * (0.5 - 0.01))
    assert part.score(less_bulk) > part.score(today)


def test_a_difference_is_as_sure_as_its_resamples() -> None:
    draw = np.random.default_rng(1)
    times = draw.uniform(300, 700, 400)
    today = run_of(times, times * 2)
    limits = [parse_limit("interactive.ttft_p90_ms <= 100")]
    half = np.arange(400) >= 200
    part = Part(requests_of(400), half, limits, today)
    assert judge(part, [today], [today], 1).probability == 0.5
    better = judge(part, [today], [run_of(times * 0.8, times * 1.6)], 1)
    assert (better.probability, better.prices["bulk"].other) == (1.0, pytest.approx(0.8))
    told = better.limits["interactive.ttft_p90_ms <= 100"]
    assert told.low < told.other < told.high < told.today
    only_before = np.where(half, times, times / 9)  # What was not held out says nothing of what was.
    assert judge(part, [today], [run_of(only_before, only_before * 2)], 1).probability == 0.5
    unsure = judge(part, [today], [run_of(draw.permutation(times), draw.permutation(times) * 2)], 1)
    assert 0.02 < unsure.probability < 0.98


@pytest.mark.parametrize("figure", ["p50", "mean"])
def test_resamples_without_a_rare_class_say_nothing_of_it(figure: str) -> None:
    requests = [*requests_of(390), *([requests_of(1)[0]] * 10)]  # All of the system class are in the last block of time.
    rare = [replace(each, given=PriorityClass.SYSTEM) if at >= 390 else each for at, each in enumerate(requests)]
    times = np.array([100.0] * 390 + [400.0 + 20 * at for at in range(10)])
    today, limit = run_of(times, times), parse_limit(f"system.ttft_{figure}_ms <= 300")
    told = judge(Part(rare, np.ones(400, dtype=bool), [limit], today), [today], [today], 1).limits[limit.text]
    assert 480 <= told.low == told.other == told.high <= 490


def test_a_search_finds_what_is_best_and_takes_back_what_is_needless() -> None:
    space = {key: list(range(8)) for key in "abcdef"}
    seen: list[int] = []

    def evaluate(points: Sequence[Point], rung: int) -> list[Score | None]:
        seen.append(len(points))
        # Only a and b matter; c = 7 cannot be simulated; the first rungs are misleading.
        far = [abs(point.get("a", 0) - 5) + abs(point.get("b", 0) - 3) + (2 - rung) * point.get("d", 0) / 9 for point in points]
        return [None if p.get("c") == 7 else Score(0.0, 1 + each) for each, p in zip(far, points, strict=True)]

    ranked = Halving(space, 81, 3).run(evaluate)
    assert ranked[0] == (Score(0.0, 1.0), {"a": 5, "b": 3})
    assert seen[0] == 81
    assert sum(seen[:3]) <= 81 + 54 + 36
    again = Halving(space, 81, 3).run(evaluate)
    assert again == ranked
    assert len({score for score, _ in ranked}) == len(ranked)
    assert num_candidates(84) == 81


def test_the_space_depends_on_what_there_is_to_vary() -> None:
    chats = default_space([*CLASSES], mode="priority", num_engines=1, has_programs=False)
    assert RESERVED in chats
    assert "admission.classes.bulk.can_preempt" not in chats  # There is no lower class.
    assert not any(key.startswith(("routing", "programs")) for key in chats)
    more = default_space([*CLASSES], mode="flow-control", num_engines=2, has_programs=True)
    assert any(key.startswith("routing.policy") for key in more)
    assert not any("classes" in key for key in more)
    for key, values in {**chats, **more}.items():
        check_entry(key, [list(each) if isinstance(each, tuple) else each for each in values], "the default space")
    assert vary(chats, ["admission.classes.bulk"]).keys() == {key for key in chats if "bulk" in key}
    assert vary(chats, [f"{RESERVED}=0.1, 0.3"]) == {RESERVED: [0.1, 0.3]}
    pair = {"routing.policy, routing.scorers": ["weighted", "queue-depth:1"]}
    assert settings_of({"gateway.slots_per_backend": "x0.5", **pair}, 9) == {
        "gateway.slots_per_backend": 4,
        "routing.policy": "weighted",
        "routing.scorers": "queue-depth:1",
    }


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("admission.classes.bulk.queue_sise", "nothing is varied that begins with"),
        ("gateway.port=1,2", "is no key that can be varied"),
        ("admission.clases=1", "is no key that can be varied"),
        (f"{RESERVED}=", "there should be a list of values"),
        (f"{RESERVED}=[,2", "'[' is no value"),
        (f"{RESERVED}=0.1,much", "reserved_per_slot: expected a number, or nothing, found 'much'"),
        (f"{RESERVED}=-1", "reserved_per_slot"),
        ("gateway.slots_per_backend=8,xinf", "'xinf' is no number of slots"),
        ("gateway.slots_per_backend=x-1", "'x-1' is no number of slots"),
        ("gateway.slots_per_backend=eight", "'eight' is no number of slots"),
    ],
)
def test_a_key_that_cannot_be_varied_is_one_clear_line(wanted: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        vary(default_space([*CLASSES], mode="priority", num_engines=1, has_programs=False), [wanted])


def test_rules_that_hold_an_slo_are_found_told_and_written(recorded: Path, maitred: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "today.yaml").write_text(KEPT)
    flags = ("--slo", SLO, "--vary", "admission.classes.interactive", "--budget", 6, "--seeds", 2, "--jobs", 1)
    written = ("--config", "today.yaml", "--write", "best.yaml", "--json", "best.json", "--report", "best.html")
    result = maitred(*arguments(recorded, *flags, *written))
    assert (result.code, "better than today" in result.out) == (0, True), result.err
    found = json.loads((tmp_path / "best.json").read_text())
    best = found["candidates"][0]
    assert (found["num_requests"], found["num_held_out"]) == (700, 210)
    assert "http://engine-0" not in best["config"]  # Keys of tenants would be there as well, and results are passed on.
    assert best["held_out"]["probability"] >= 0.95
    assert best["held_out"]["limits"][SLO]["other"] < best["held_out"]["limits"][SLO]["today"]
    assert best["settings"].keys() == {RESERVED}  # Other keys of the class change nothing here, and are taken back.
    config = ConfigSources(file=tmp_path / "best.yaml").load()
    assert config.gateway.backends == ("http://engine-0", "http://engine-1")
    assert config.admission.classes.interactive is not None
    assert config.admission.classes.interactive.reserved_per_slot == best["settings"][RESERVED]
    assert config.admission.classes.bulk is None  # That was not in force when the log was written.
    assert (tmp_path / "best.yaml").read_text().startswith("# maitred tune: better than the rules in force with ")
    assert "What it costs each class" in (tmp_path / "best.html").read_text()


def test_what_holds_today_is_what_the_log_says(recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "today.yaml").write_text("gateway: {slots_per_backend: 3}\nadmission: {mode: legacy}\n")
    world = ReplayWorld.calibrated(read_recorded([recorded / "decisions.jsonl"], [recorded / "record.csv"]))
    rules = Rules(world, tmp_path / "today.yaml")
    assert rules.candidate({}) == rules.today
    half = rules.candidate({"gateway.slots_per_backend": "x0.5"})
    assert (rules.today.cluster.capacity, half.cluster.capacity) == (8, 4)
    more = rules.candidate({"gateway.slots_per_backend": "x2"})
    assert (more.cluster.capacity, more.instance.max_num_seqs) == (16, rules.today.instance.max_num_seqs)
    with pytest.raises(ConfigError, match="reserved_per_slot"):
        rules.candidate({RESERVED: -1})
    assert "null" not in rules.text({RESERVED: 0.5})


def test_keys_of_classes_bring_classes_to_a_gateway_without(tmp_path: Path) -> None:
    write_run(tmp_path, mixed_jobs(200), candidate(AdmissionConfig(default_max_class="system"), capacity=None))
    world = ReplayWorld.calibrated(read_recorded([tmp_path / "decisions.jsonl"], [tmp_path / "record.csv"]))
    rules = Rules(world, None)
    assert rules.mode == "legacy"
    assert rules.settings({RESERVED: 0.5}) == {"admission.mode": "priority", RESERVED: 0.5}
    assert rules.settings({"routing.policy": "random"}) == {"routing.policy": "random"}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "--slo: there is nothing to hold"),
        (("--slo", "interactive.ttft_p99 <= 3"), "there is no metric 'interactive.ttft_p99' (did you mean 'ttft_p99_ms'?)"),
        (("--slo", "completed_requests >= 3"), "is no upper limit of a latency"),
        (("--slo", "ttft_p99_ms <= 0"), "is no upper limit of a latency"),
        (("--slo", SLO, "--seed", -1), "--seed: -1 is out of range"),
        (("--slo", SLO, "--report", "no/page.html"), "--report: there is no directory no"),
        (("--slo", SLO, "--json", "one", "--write", "one"), "--write: one is already what --json writes to"),
        (("--slo", SLO, "--vary", "routing.policy=nonsense", "--jobs", 1), "the first: unknown routing policy 'nonsense'"),
        (("--slo", "system.ttft_p99_ms <= 3"), "no recorded request is of the class or tenant 'system'"),
        (("--slo", SLO, "--holdout", 0.9), "--holdout: 0.9 is out of range (0.05 to 0.8)"),
        (
            ("--slo", SLO, "--holdout", 0.1),
            "700 requests are too few to tune by: 630 to search on, and 70 held out (at least 100 of each",
        ),
        (("--slo", SLO, "--holdout", 0.1), "record 1,000 or more, or --holdout 0.15)"),
        (("--slo", SLO, "--vary", "x"), "--vary: nothing is varied that begins with 'x'"),
        (("--slo", SLO, "--space", "none.yaml"), "none.yaml: cannot be read"),
        (("--slo", SLO, "--config", "none.yaml"), "none.yaml: cannot be read"),
        (("--slo", SLO, "--jobs", 2, "--ray", "auto"), "--jobs does not go with --ray"),
        (("--slo", SLO, "--budget", 0), "--budget: 0 is out of range"),
    ],
)
def test_a_mistake_is_one_line(recorded: Path, maitred: Callable[..., Any], flags: tuple[object, ...], said: str) -> None:
    result = maitred(*arguments(recorded, *flags))
    assert (result.code, result.err.count("\n"), said in result.err) == (2, 1, True), result.err


def test_a_limit_on_first_tokens_needs_answers_that_stream(recorded: Path, maitred: Callable[..., Any], tmp_path: Path) -> None:
    rows = (recorded / "record.csv").read_text().splitlines()
    (tmp_path / "record.csv").write_text("\n".join(row.replace(",true,m,", ",false,m,") for row in rows))
    (tmp_path / "decisions.jsonl").write_bytes((recorded / "decisions.jsonl").read_bytes())
    result = maitred(*arguments(tmp_path, "--slo", SLO))
    assert (result.code, "there are no such requests" in result.err) == (2, True), result.err


@pytest.mark.parametrize(("column", "value"), [("arrival_secs", "1e300"), ("e2e_secs", "-4"), ("cached_tokens", "1e300")])
def test_a_row_with_an_impossible_number_is_named(
    recorded: Path, maitred: Callable[..., Any], tmp_path: Path, column: str, value: str
) -> None:
    head, first, *rows = (recorded / "record.csv").read_text().splitlines()
    changed = ",".join(value if name == column else each for name, each in zip(head.split(","), first.split(","), strict=True))
    (tmp_path / "record.csv").write_text("\n".join([head, changed, *rows]))
    result = maitred("tune", recorded / "decisions.jsonl", "--record", "record.csv", "--slo", SLO)
    assert (result.code, f"record.csv:2: {column} should be" in result.err) == (2, True), result.err
