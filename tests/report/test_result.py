"""`maitred.simulate` and its Result, as a program and a notebook use them, and what is said of what was simulated."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

import maitred
from maitred.admission import AdmissionConfig
from maitred.instance import InstanceConfig, LinearLatency
from maitred.instance.catalogue import resolve_instance
from maitred.instance.latency import StepTable, TableLatency
from maitred.report import RunSetup, derived_keys
from maitred.routing import RoutingConfig
from maitred.sim import ClusterConfig, simulate


def workload() -> object:
    return maitred.synthetic(rate=20, num_requests=200, class_mix="interactive:1,bulk:1")


@pytest.fixture(scope="module")
def result() -> maitred.Result:
    slo = maitred.Slo(ttft_ms=50)
    return maitred.simulate(workload(), maitred.ClusterConfig(num_instances=2), seed=7, slo=slo)


def test_its_rows_are_those_of_the_simulator(result: maitred.Result) -> None:
    bare = simulate(workload(), maitred.ClusterConfig(num_instances=2), seed=7)
    assert np.array_equal(result.rows.finished, bare.finished)
    assert bare.samples is None
    assert result.rows.samples is not None


def test_it_sums_up_by_its_slo_or_another(result: maitred.Result) -> None:
    met = int(np.count_nonzero(result.rows.first_token - result.rows.arrival <= 50_000))
    assert result.summary().total.within_slo == met
    assert result.summary(maitred.Slo(ttft_ms=0.001)).total.within_slo == 0
    assert list(result.summary(by=[maitred.By.INSTANCE]).by) == [maitred.By.CLASS, maitred.By.INSTANCE]


def test_it_writes_page_and_plot(result: maitred.Result, tmp_path: Path) -> None:
    result.report(tmp_path / "run.html")
    figure = result.plot(tmp_path / "run.svg")
    assert (tmp_path / "run.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (tmp_path / "run.svg").read_bytes().startswith(b"<?xml")
    assert len(figure.axes) >= 8
    assert result.to_frame().height == 200


def test_what_cannot_be_written_is_told_and_leaves_nothing(result: maitred.Result, tmp_path: Path) -> None:
    with pytest.raises(maitred.ConfigError, match="there is no directory"):
        result.report(tmp_path / "no" / "run.html")
    with pytest.raises(maitred.ConfigError, match="no suffix of a picture format"):
        result.plot(tmp_path / "run.gif")
    assert list(tmp_path.iterdir()) == []


def test_it_shows_itself(result: maitred.Result) -> None:
    assert re.fullmatch(r"<Result: 200 of 200 requests completed, TTFT p99 [\d.]+ ms, [\d.]+% within SLO>", repr(result)), repr(
        result
    )
    html = result._repr_html_()
    assert html.count("<tr>") == 1 + 3 * 3
    assert "200 of 200 requests completed" in html


def test_a_trace_may_be_named_as_on_the_command_line() -> None:
    result = maitred.simulate("sample:mixed", maitred.ClusterConfig(num_instances=2), sample_every_ms=None)
    assert (len(result.rows), result.setup.workload, result.rows.samples) == (476, "sample:mixed", None)
    with pytest.raises(maitred.ConfigError, match=r"none\.csv: cannot be read"):
        maitred.simulate("azure:none.csv")


def test_the_setup_is_what_was_simulated() -> None:
    """With a capacity and no admission section, the default classes apply."""
    result = maitred.simulate(workload(), maitred.ClusterConfig(capacity=5))
    written = result.setup.flat_sections()
    assert written["admission"]["mode"] == ("priority", False)
    assert written["cluster"]["capacity"] == (5, False)
    assert written["cluster"]["num_instances"] == (1, True)


def test_a_horizon_cuts_it_off() -> None:
    result = maitred.simulate(workload(), horizon_secs=1)
    assert result.rows.end == 1_000_000
    assert "no first token" in repr(maitred.simulate(workload(), horizon_secs=1e-6))


NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.py"


def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Two instances are too few for the chats. Three suffice, and so do two with classes, at the cost of bulk work."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(NOTEBOOK))
    lines = capsys.readouterr().out.splitlines()
    attained = {line.split(":")[0]: float(line.split()[2].rstrip("%")) for line in lines if " of the chats" in line}
    assert attained["2 instances"] < 50
    assert attained["3 instances"] >= 99
    within = [line for line in lines if line.startswith(("interactive", "bulk"))]
    assert within[2].endswith(", 100.0% within the SLO")
    assert within[3].startswith("bulk")
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "charts.png"}


OFF = AdmissionConfig(mode="off")


def setup_of(stated: InstanceConfig, cluster: ClusterConfig | None = None, admission: AdmissionConfig = OFF) -> RunSetup:
    resolved = resolve_instance(stated)
    sections = {
        "cluster": cluster or ClusterConfig(),
        "instance": resolved,
        "routing": RoutingConfig(policy="round-robin"),
        "admission": admission,
    }
    return RunSetup(seed=7, sections=sections, derived=derived_keys(stated, resolved))


def line(stated: InstanceConfig, cluster: ClusterConfig | None = None, admission: AdmissionConfig = OFF) -> str:
    return setup_of(stated, cluster, admission).in_one_line()


def test_a_run_without_a_model_names_no_gpu() -> None:
    said = line(InstanceConfig())
    assert said == (
        "generic linear model, no particular GPU; 1 instance; a step takes 5,000 µs + 17.5 per prefill token + 60 per decode, "
        "error unknown; 27,000 KV blocks of 16 tokens each, the default; order fcfs, no admission; seed 7; maitred 0.1.0"
    )


def test_a_model_is_named_with_its_gpus_the_error_and_the_memory() -> None:
    said = line(
        InstanceConfig(model="llama-3.1-8b", latency="trained-physics", tensor_parallel_size=2, scheduler="sjf"),
        ClusterConfig(num_instances=3),
    )
    assert said.startswith(
        "llama-3.1-8b on 3 instances of 2 × H100 (TP 2); trained-physics latency model, published error 5.5%"
    )
    assert "KV blocks of 16 tokens each, what fits beside the model at 90% of the memory; " in said
    assert "order sjf, router round-robin, no admission" in said


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        (InstanceConfig(model="llama-3.1-8b", hardware="H200", latency="trained-physics"), "no error published for H200"),
        (InstanceConfig(model="llama-3.1-8b", latency="roofline"), "roofline latency model, error unknown"),
        (InstanceConfig(latency_error=0.04), "error 4.0% as configured"),
        (InstanceConfig(latency_scale=1.5), "all steps × 1.5"),
        (InstanceConfig(total_kv_blocks=500), "500 KV blocks of 16 tokens each, as given"),
        (InstanceConfig(latency=LinearLatency((1.0, 2.0, 3.0))), "no model, no particular GPU; 1 instance; a step takes 1 µs"),
        (InstanceConfig(enable_prefix_caching=True), "order fcfs, prefix caching, no admission"),
        (InstanceConfig(flavour="sglang"), "flavour sglang"),
    ],
)
def test_what_is_particular_to_a_run_is_in_its_line(stated: InstanceConfig, words: str) -> None:
    assert words in line(stated)


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("", " without measured kernels (pip install 'maitred[silicon]'), error unknown"),
        ("0.12", ", as AIConfigurator does not"),
    ],
)
def test_why_a_run_has_no_measured_kernels_is_in_its_line(version: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("report.run_setup", "instance.catalogue.measured"):
        monkeypatch.setattr(f"maitred.{module}.installed_version", lambda: version)
    assert f"roofline latency model{words}" in line(InstanceConfig(model="yi-34b"))


def test_a_table_of_step_times_is_shown_by_its_source() -> None:
    setup = setup_of(InstanceConfig(latency=TableLatency(table=StepTable(tokens=((1.0, 100.0),), source="RTX4090, vLLM 0.19"))))
    shown = setup.settings_in_force()["instance"]
    assert shown["latency.table"] == ("RTX4090, vLLM 0.19", False)
    assert not any(key.startswith("latency.table.") for key in shown)


def test_admission_is_in_the_line() -> None:
    said = line(InstanceConfig(), ClusterConfig(capacity=8), AdmissionConfig(mode="priority"))
    assert "admission priority of 8 slots" in said


def keys(setup: RunSetup, section: str) -> set[str]:
    return set(setup.settings_in_force()[section])


def test_settings_without_effect_are_left_out() -> None:
    setup = setup_of(InstanceConfig())
    assert keys(setup, "instance").isdisjoint({"hardware", "tensor_parallel_size", "gpu_memory_utilization", "prefix_cache"})
    assert not any(key.startswith("sglang.") for key in keys(setup, "instance"))
    assert keys(setup, "admission") == {"mode", "policy"}
    assert keys(setup, "routing") == {"policy"}  # given, though one instance leaves nothing to choose
    assert not any(key.startswith("disaggregation") for key in keys(setup, "cluster"))


def test_settings_in_force_are_shown() -> None:
    setup = setup_of(
        InstanceConfig(model="llama-3.1-8b", enable_prefix_caching=True),
        ClusterConfig(num_instances=2),
        AdmissionConfig(mode="flow-control"),
    )
    assert keys(setup, "instance") >= {"model", "hardware", "tensor_parallel_size", "prefix_cache", "total_kv_blocks"}
    assert "flow_control.max_concurrency" in keys(setup, "admission")
    assert "legacy.queue_size" not in keys(setup, "admission")


def test_what_was_given_is_shown_even_without_effect() -> None:
    setup = setup_of(InstanceConfig(hardware="A100"))
    assert setup.settings_in_force()["instance"]["hardware"] == ("A100", False)


def test_an_iterator_that_was_read_before_is_named() -> None:
    jobs = iter([*maitred.synthetic(rate=10, num_requests=20)])
    assert len(maitred.simulate(jobs).rows) == 20
    with pytest.raises(maitred.ConfigError, match="an iterator is read once"):
        maitred.simulate(jobs)
    assert len(maitred.simulate(()).rows) == 0
