"""`maitred models` and `maitred policies`, and the flags that take their names: of models, hardware, step times and routing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from maitred.admission import POLICIES
from maitred.cli.engine import EngineFlags, names_real_model
from maitred.cli.shared_flags import InstanceFlags, latency_of_flags
from maitred.config.root import KINDS
from maitred.core.errors import ConfigError
from maitred.core.registry import NOT_SAID
from maitred.instance.catalogue import hardware_names, model_names
from maitred.instance.latency import AIConfiguratorLatency, LatencyConfig, LinearLatency, RooflineLatency, TrainedPhysicsLatency
from maitred.queueing import SCHEDULERS
from maitred.routing import ROUTERS, SCORERS

DOCUMENTED = ["--model", "meta-llama/llama-3.1-8b-instruct", "--num-instances", "4", "--rate", "100", "--num-requests", "500"]
ORDER = ["--scheduler", "priority-fcfs", "--priority-policy", "slo-based"]


def test_every_model_has_its_line_with_the_kv_that_fits_beside_it(maitred: Any) -> None:
    result = maitred("models")
    rows = {row.split()[0]: row.split() for row in result.out.splitlines() if row.strip()}
    assert result.code == 0
    assert set(model_names()) <= set(rows)
    assert rows["llama-3.1-8b"][1:7] == ["8.0", "B", "131,072", "421", "@", "1"]  # 26,312 blocks of 16 tokens


def test_one_model_is_shown_on_every_kind_of_gpu(maitred: Any) -> None:
    result = maitred("models", "meta-llama/llama-3.1-70b-instruct", "--tp", 1)
    rows = {row.split()[0]: row.split() for row in result.out.splitlines() if row.strip()}
    assert set(hardware_names()) <= set(rows)
    assert rows["H100"][1:] == ["80", "3.35", "990", "1,979", "-"]  # 141 GB of weights
    assert rows["A10"][1:] == ["24", "0.60", "125", "-", "-"]
    assert rows["MI325X"][-2:] == ["@", "1"]


def test_other_kinds_of_gpu_are_asked_for(maitred: Any) -> None:
    result = maitred("models", "--hardware", "l4", "--hardware", "MI300X")
    assert result.code == 0
    assert "KV on L4" in result.out
    assert "KV on MI300X" in result.out


def test_its_tables_fit_into_80_columns(maitred: Any) -> None:
    for arguments in ((), ("llama-3.1-8b",), ("deepseek-v3", "--tp", 16)):
        assert max(map(len, maitred("models", *arguments).out.splitlines())) <= 80


def test_an_unknown_model_is_a_mistake_in_one_line(maitred: Any) -> None:
    result = maitred("models", "lama-3.1-8b")
    assert result.code == 2
    assert result.err.startswith("maitred: error: model: unknown model 'lama-3.1-8b' (did you mean 'llama-3.1-8b'?")
    assert maitred("simulate", *DOCUMENTED, "--hardware", "H10").err.startswith(
        "maitred: error: --hardware: unknown hardware 'H10'"
    )


def test_an_unknown_gpu_is_told_how_to_be_described(maitred: Any) -> None:
    error = maitred("simulate", *DOCUMENTED, "--hardware", "TPUv9").err
    assert "--hardware-config FILE" in error
    assert "TFlopsPeak" in error


def test_the_documented_command_line(maitred: Any, tmp_path: Path) -> None:
    result = maitred("simulate", *DOCUMENTED, *ORDER, "--metrics-path", "m.json", "--results-path", "r.json")
    assert result.code == 0, result.err
    results = json.loads((tmp_path / "r.json").read_text())
    assert len(results) == 500
    assert min(row["ttft_us"] for row in results) > 15e9 / 3.35e6  # no step is shorter than it takes to read the weights


def test_a_faster_gpu_is_faster(maitred: Any, tmp_path: Path) -> None:
    mean = {}
    for gpu in ("A100", "H200"):
        maitred("simulate", *DOCUMENTED, "--hardware", gpu, "--results-path", "r.json", "--quiet")
        rows = json.loads((tmp_path / "r.json").read_text())
        mean[gpu] = sum(row["e2e_us"] for row in rows) / len(rows)
    assert mean["H200"] < 0.8 * mean["A100"]


TEN = "0,0,0,0,0,50,5000,0,0,0"
PURELY_LINEAR = TrainedPhysicsLatency((1000.0, 500.0, 20.0), (0, 0, 0, 0, 0, 50, 5000, 0, 0, 0))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, None),
        ({"latency_model": "roofline"}, RooflineLatency()),
        ({"latency_model": "trained-physics"}, TrainedPhysicsLatency()),
        ({"latency_model": "linear"}, LinearLatency()),
        ({"latency_model": "linear:1,2,3"}, LinearLatency((1, 2, 3))),
        ({"beta_coeffs": "1,2,3"}, LinearLatency((1, 2, 3))),
        ({"beta_coeffs": "1,2,3", "alpha_coeffs": "500,1,100"}, LinearLatency((1, 2, 3), (500, 1, 100))),
        ({"latency_model": "blackbox", "beta_coeffs": "1,2,3"}, LinearLatency((1, 2, 3))),
        ({"latency_model": "linear", "alpha_coeffs": "500,1,100"}, LinearLatency(alpha=(500, 1, 100))),
        (
            {"latency_model": "aiconfigurator(step_overhead=9)", "alpha_coeffs": "500,1,100"},
            AIConfiguratorLatency(step_overhead=9, alpha=(500, 1, 100)),
        ),
        ({"beta_coeffs": TEN, "alpha_coeffs": "1000,500,20"}, PURELY_LINEAR),
        ({"latency_model": "trained-physics", "beta_coeffs": TEN, "alpha_coeffs": "1000,500,20"}, PURELY_LINEAR),
    ],
)
def test_a_latency_model_and_its_coefficients(flags: dict[str, str], expected: LatencyConfig | None) -> None:
    assert latency_of_flags(InstanceFlags(**flags)) == expected


@pytest.mark.parametrize(
    ("flags", "wrong"),
    [
        ({"latency_model": "trained"}, "--latency-model: unknown latency model 'trained' .did you mean 'trained-physics'"),
        ({"latency_model": "roofline", "beta_coeffs": "1,2,3"}, "--beta-coeffs: roofline has no coefficients"),
        ({"latency_model": "aiconfigurator", "beta_coeffs": "1,2,3"}, "--beta-coeffs: aiconfigurator has measured steps and"),
        ({"latency_model": "aiconfigurator", "alpha_coeffs": "-1,2,3"}, "--alpha-coeffs: alpha must be"),
        ({"latency_model": "roofline:1"}, "--latency-model: roofline has no coefficients"),
        ({"alpha_coeffs": "1,2,3"}, "--alpha-coeffs: without --beta-coeffs it has no effect"),
        ({"beta_coeffs": TEN}, "--beta-coeffs: trained-physics takes --alpha-coeffs and --beta-coeffs together"),
        ({"latency_model": "trained-physics", "alpha_coeffs": "1,2,3"}, "--alpha-coeffs: trained-physics takes"),
        ({"latency_model": "trained-physics:1,2"}, "--latency-model: trained-physics takes no coefficients here"),
        ({"beta_coeffs": "1,2"}, "--beta-coeffs: linear takes three β, not 2"),
        ({"latency_model": "linear", "beta_coeffs": TEN}, "--beta-coeffs: linear takes three β, not 10"),
        ({"latency_model": "trained-physics", "alpha_coeffs": "1,2,3", "beta_coeffs": "1,2,3"}, "from 7 to 11"),
        ({"alpha_coeffs": "1,2", "beta_coeffs": "1,2,3"}, "three numbers, not 2"),
        ({"beta_coeffs": "1,two,3"}, "--beta-coeffs: '1,two,3' is no list of numbers"),
        ({"beta_coeffs": "1,2,-3"}, "--beta-coeffs: beta must be three numbers from 0"),
        ({"latency_model": "linear:1,2,3", "beta_coeffs": "1,2,3"}, "two names for one thing"),
    ],
)
def test_what_does_not_go_together(flags: dict[str, str], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        latency_of_flags(InstanceFlags(**flags))


def test_the_name_of_an_emulated_engine_is_only_a_name_until_hardware_is_given() -> None:
    model = {"engine.model": "meta-llama/llama-3.1-8b-instruct"}
    assert not names_real_model(EngineFlags(values=model))
    assert names_real_model(EngineFlags(values={**model, "instance.hardware": "H100"}))
    assert names_real_model(EngineFlags(values=model, latency_model="roofline"))


def test_every_policy_has_its_line_with_cost_and_starvation(maitred: Any) -> None:
    result = maitred("policies")
    assert result.code == 0
    rows = {row.split()[0]: row for row in result.out.splitlines() if row.strip()}
    assert set(SCHEDULERS) <= set(rows)
    assert "not documented" not in result.out
    assert re.search(r"lpm .* O\(log n\) .* requests with nothing in the cache .* yes$", rows["lpm"].rstrip())
    assert re.search(r"fcfs +in order of arrival.* O\(1\) .* no$", rows["fcfs"].rstrip())
    assert rows["bounded"].rstrip().endswith("as the inner policy")
    assert re.search(r"slo-based +base_score=0.0, age_weight=1e-06 ", rows["slo-based"])
    assert re.search(r"quantile +q=0.5 ", rows["quantile"])


def test_one_policy_is_shown_with_its_parameters(maitred: Any) -> None:
    result = maitred("policies", "bounded")
    assert result.code == 0
    assert result.out.startswith("bounded(policy, max_wait, max_displacement)\n")
    assert "seconds" in result.out


def test_an_unknown_policy_is_a_mistake_in_one_line(maitred: Any) -> None:
    result = maitred("policies", "lmp")
    assert result.code == 2
    assert result.err == "maitred: error: unknown policy 'lmp' (did you mean 'lpm'?)\n"


def test_routers_and_scorers_are_listed_with_what_they_look_at(maitred: Any) -> None:
    rows = {row.split()[0]: row.rstrip() for row in maitred("policies").out.splitlines() if row.strip()}
    assert {*ROUTERS, *SCORERS} <= set(rows)
    assert re.search(r"power-of-two .* O\(1\) +in flight$", rows["power-of-two"])
    assert re.search(r"kv-utilization +1 - used share of the KV blocks +O\(n\) +KV usage$", rows["kv-utilization"])
    assert "for tests only" in rows["always-busiest"]


def test_one_router_and_one_scorer_are_shown_with_the_parameters_that_users_may_write(maitred: Any) -> None:
    assert maitred("policies", "session-affinity").out.startswith("session-affinity(policy, sessions=100000, by=closest, ")
    assert maitred("policies", "least-loaded").out.startswith("least-loaded(load=in_flight)\n")
    shown = maitred("policies", "prefix-affinity").out
    assert shown.startswith("prefix-affinity(block=16, most)\n")
    assert "\n  looks at: the prompt\n" in shown
    assert (
        maitred("policies", "power-of-to").err
        == "maitred: error: unknown policy 'power-of-to' (did you mean 'power-of-two'?)\n"
    )


def test_admission_policies_are_listed_with_what_they_refuse(maitred: Any) -> None:
    rows = {row.split()[0]: row.rstrip() for row in maitred("policies").out.splitlines() if row.strip()}
    assert re.search(r"token-bucket +rate=1000.0, capacity=10000.0 +Refuses .*\(BLIS `token-bucket`\)$", rows["token-bucket"])
    assert all(" Refuses " in rows[name] for name in POLICIES)
    assert maitred("policies", "token-bucket").out.startswith("token-bucket(rate=1000.0, capacity=10000.0)\n  Refuses ")


def test_every_kind_is_listed_and_every_plug_in_has_a_summary(maitred: Any) -> None:
    result = maitred("policies").out
    names = [line.split()[0] for line in result.splitlines() if line.strip()]
    for kind in KINDS:
        assert f" {kind.kind} ({kind.flag}) " in result
        assert set(kind) <= set(names)
        for name in kind:
            assert NOT_SAID not in kind.describe(name).values(), f"{kind.kind} {name} does not say what it is"


def test_a_class_elsewhere_is_shown_as_those_that_are_known(maitred: Any) -> None:
    Path("my_scorers.py").write_text(
        "class Half:\n"
        "    'Half of all.'\n"
        "    def __init__(self, of: float = 1.0): ...\n"
        "    def scores(self, request, fleet): ...\n"
        "    def on_chosen(self, request, view): ...\n"
    )
    assert maitred("policies", "my_scorers:Half").out == (
        "my_scorers:Half(of=1.0)\n  Half of all\n  cost: not documented\n  looks at: not documented\n"
    )
    assert "cannot load scheduler 'my_scorers:Third'" in maitred("policies", "my_scorers:Third").err


ROUTED = ["simulate", "--rate", "50", "--num-requests", "40", "--num-instances", "3", "--quiet"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--routing-policy", "power-of-two"],
        ["--routing-policy", "weighted", "--routing-scorers", "queue-depth:2,kv-utilization:2,load-balance:1"],
        ["--routing-policy", "session-affinity(round-robin)", "--tenant-mix", "auth:a:0.5,auth:b:0.5"],
    ],
)
def test_a_policy_is_taken_without_a_word(maitred: Any, flags: list[str]) -> None:
    result = maitred(*ROUTED, *flags)
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize(
    ("flags", "warning"),
    [
        (["--routing-scorers", "load-aware:1"], "routing scorers have no effect with least-loaded"),
        (["--routing-policy", "weighted"], "the scorer precise-prefix-cache looks at the prefix caches of the instances"),
        (
            ["--routing-policy", "weighted", "--routing-scorers", "prefix-affinity:1"],
            "the scorer prefix-affinity looks at what prompts say, which is not known here",
        ),
        (["--routing-policy", "session-affinity"], "session-affinity: no request names a program, routing key or tenant here"),
    ],
)
def test_a_flag_without_effect_is_a_warning(maitred: Any, flags: list[str], warning: str) -> None:
    result = maitred(*ROUTED, *flags)
    assert result.code == 0
    assert result.err.startswith(f"maitred: warning: {warning}")
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("command", [ROUTED, ["serve", "--backend", "http://127.0.0.1:9", "--strict-config"]])
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
