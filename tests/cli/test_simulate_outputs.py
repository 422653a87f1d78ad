"""What `maitred simulate` shows and writes of a run, by its flags."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

RUN = ("simulate", "--rate", 50, "--num-requests", 200, "--class-mix", "interactive:1,bulk:2", "--num-instances", 2)
TENANTS = ("--tenant-mix", "auth:acme:1,auth:globex:3")


def metrics(path: str = "m.json") -> Any:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def line(text: str, *start: str) -> list[str]:
    lines = [line.split() for line in text.splitlines()]
    return next(line for line in lines if tuple(line[: len(start)]) == start)


def test_a_page_with_the_command_that_made_it(maitred: Any) -> None:
    result = maitred(*RUN, "--report", "run.html")
    assert result.code == 0
    page = Path("run.html").read_text(encoding="utf-8")
    assert "200 requests, 50 per second" in page
    workload = "--rate 50.0 --num-requests 200 --class-mix interactive:1,bulk:2"
    assert f"maitred simulate {workload} --num-instances 2 --report run.html" in page
    assert "KV cache" in page


def test_a_page_and_a_plot_change_nothing(maitred: Any) -> None:
    plain = maitred(*RUN, "--results-path", "a.json")
    shown = maitred(*RUN, "--results-path", "b.json", "--report", "run.html", "--plot", "run.svg")
    assert plain.out == shown.out
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes()
    first = Path("run.html").read_bytes(), Path("run.svg").read_bytes()
    maitred(*RUN, "--results-path", "b.json", "--report", "run.html", "--plot", "run.svg")
    assert first == (Path("run.html").read_bytes(), Path("run.svg").read_bytes())


def test_requests_as_parquet_or_csv_are_all_requests(maitred: Any) -> None:
    for name, read in (("r.parquet", pl.read_parquet), ("r.csv", pl.read_csv)):
        maitred(*RUN, *TENANTS, "--results-path", name, "--horizon-secs", 2)
        frame = read(name)
        assert set(frame["outcome"].cast(pl.String)) == {"completed", "unfinished"}
        assert set(frame["tenant"].cast(pl.String)) == {"auth:acme", "auth:globex"}


@pytest.mark.parametrize(
    ("per", "groups"),
    [("tenant", {"auth:acme", "auth:globex"}), ("instance", {"0", "1"}), ("class", {"interactive", "bulk"})],
)
def test_the_table_is_broken_down_as_one_likes(maitred: Any, per: str, groups: set[str]) -> None:
    result = maitred(*RUN, *TENANTS, "--per", per)
    words = set(result.out.split())
    assert groups <= words
    assert max(map(len, result.out.splitlines())) <= 80
    others = {"auth:acme", "auth:globex", "interactive"} - groups
    assert not others & words


def test_all_breakdowns_are_in_the_metrics(maitred: Any) -> None:
    maitred(*RUN, *TENANTS, "--metrics-path", "m.json")
    figures = metrics()
    assert sum(group["injected_requests"] for group in figures["per_tenant"].values()) == 200
    assert set(figures["per_instance"]) == {"0", "1"}
    assert 0 < figures["per_instance"]["0"]["utilisation"] < 1
    assert figures["per_instance"]["0"]["itl_p99_ms"] > 0
    assert 0.5 < figures["fairness_jain_index"] < 1


def test_a_summary_alone_has_the_same_figures_and_nearly_the_same_percentiles(maitred: Any) -> None:
    exact = maitred(*RUN, *TENANTS, "--metrics-path", "m.json")
    nearly = maitred(*RUN, *TENANTS, "--metrics-path", "n.json", "--summary-only")
    assert line(exact.out, "output", "tokens/s") == line(nearly.out, "output", "tokens/s")
    assert metrics("m.json").keys() == metrics("n.json").keys()
    for name, value in metrics("m.json")["per_tenant"]["auth:acme"].items():
        unknown = name.startswith(("itl_p", "itl_std"))  # of groups: a summary does not keep to which request a gap belongs
        expected = None if unknown else pytest.approx(value, rel=0.0101)
        assert metrics("n.json")["per_tenant"]["auth:acme"][name] == expected, name
        assert not unknown or value > 0


def test_targets_of_classes_as_blis_writes_them(maitred: Any) -> None:
    def met(*flags: str) -> float:
        maitred(*RUN, "--metrics-path", "m.json", *flags)
        return float(metrics()["slo_attainment"])

    maitred(*RUN, "--metrics-path", "m.json")
    chats = metrics()["per_class"]["interactive"]["injected_requests"] / 200
    assert met("--slo-ttft", "interactive=1us,bulk=3600s") == pytest.approx(1 - chats)
    assert met("--slo-ttft-ms", "0.001", "--slo-ttft", "interactive=100s") == pytest.approx(chats)
    assert met("--slo-e2e", "interactive=1e2s,bulk=1us") == pytest.approx(chats)
    assert metrics()["slo"]["classes"]["interactive"] == {"ttft_ms": None, "tpot_ms": None, "e2e_ms": 100_000}
    assert met("--slo-itl", "interactive=1ms") < 1


def test_a_class_without_requests_is_a_warning(maitred: Any) -> None:
    result = maitred(*RUN, "--slo-ttft", "interactiv=1s")
    assert result.code == 0
    assert "maitred: warning: there is an SLO for the class 'interactiv', and no request of it\n" in result.err


def test_thrashing_is_a_warning(maitred: Any) -> None:
    lengths = ("--input-tokens", 400, "--output-tokens", 300, "--total-kv-blocks", 100)
    result = maitred("simulate", "--rate", 50, "--num-requests", 60, *lengths)
    assert "maitred: warning: KV thrashing: " in result.err
    assert "wasted tokens" in result.out
    assert "KV thrashing" not in maitred(*RUN).err


def test_what_blis_called_its_flags_before(maitred: Any) -> None:
    flags = ("--max-num-running-reqs", 7, "--max-num-scheduled-tokens", 300, "--preemption-policy", "priority")
    assert maitred(*RUN, *flags, "--report", "run.html").code == 0
    page = Path("run.html").read_text(encoding="utf-8")
    for line in ("max_num_seqs: 7", "max_num_batched_tokens: 300", "preemption_policy: priority"):
        assert f"<b>  {line}</b>" in page


def test_a_horizon_in_micros_as_blis_has_it(maitred: Any) -> None:
    maitred(*RUN, "--horizon", 1_500_000, "--metrics-path", "m.json")
    assert metrics()["simulated_duration_s"] == 1.5
    result = maitred(*RUN, "--horizon", 60)
    assert "warning: --horizon is in µs, as in BLIS: the run ends after 6e-05 s (--horizon-secs takes seconds)\n" in result.err


def test_a_page_on_standard_output_stands_there_alone(maitred: Any) -> None:
    printed = maitred(*RUN, "--report", "-").out
    assert printed.startswith("<!doctype html>")
    assert printed.rstrip().endswith("</html>")


MISTAKES = [
    (["--per", "tenants"], "--per: there is no breakdown 'tenants' (did you mean 'tenant'?)"),
    (["--plot", "p.gif"], "--plot: p.gif has no suffix of a picture format"),
    (["--plot", "p"], "--plot: p has no suffix of a picture format (end it in .png, .svg, .pdf)"),
    (["--report", "no/r.html"], "--report: there is no directory no (create it first)"),
    (["--report", "a", "--metrics-path", "a"], "--report: a is already what --metrics-path writes to (name another file)"),
    (["--summary-only", "--report", "r.html"], "--report does not go with --summary-only (it keeps no requests"),
    (["--summary-only", "--results-path", "r.json"], "--results-path does not go with --summary-only"),
    (["--summary-only", "--plot", "p.png"], "--plot does not go with --summary-only"),
    (["--slo-ttft", "100ms"], "--slo-ttft: cannot read '100ms' (write it as critical=100ms,standard=2s)"),
    (["--slo-itl", "critical=100"], "--slo-itl: cannot read 'critical=100' (write it as"),
    (["--slo-e2e", "critical=1s,,"], "--slo-e2e: cannot read ''"),
    (["--slo-e2e", "critical=1.2.3s"], "--slo-e2e: cannot read 'critical=1.2.3s'"),
    (["--slo-e2e", "critical=1e999s"], "--slo-e2e: cannot read 'critical=1e999s'"),
    (["--slo-e2e", "critical=0s"], "--slo-e2e: cannot read 'critical=0s'"),
    (["--horizon", "0"], "--horizon: 0 µs cannot be used (from 1 to 1e+17)"),
    (["--horizon", "1000000", "--horizon-secs", "1"], "--horizon and --horizon-secs are two names for one thing (give one"),
]


@pytest.mark.parametrize(("flags", "what"), MISTAKES, ids=[" ".join(flags) for flags, _ in MISTAKES])
def test_a_mistake_is_one_line_and_leaves_no_file(maitred: Any, flags: list[str], what: str) -> None:
    result = maitred(*RUN, *flags)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("maitred: error: ")
    assert result.err.count("\n") == 1
    assert what in result.err
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("library", "flags", "extra"),
    [("polars", ("--results-path", "r.parquet"), "frames"), ("matplotlib", ("--plot", "p.png"), "plots")],
)
def test_a_library_that_is_missing_is_one_line(
    maitred: Any, monkeypatch: pytest.MonkeyPatch, library: str, flags: tuple[str, str], extra: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    result = maitred(*RUN, *flags)
    assert result.code == 2
    assert result.err == (
        f"maitred: error: {flags[0]}: needs {library}, which is not installed (pip install 'maitred[{extra}]')\n"
    )
    assert list(Path().iterdir()) == []


def test_a_tenant_that_starves_is_told_without_being_asked_for(maitred: Any) -> None:
    """Slots are held by as many requests of acme as may be; those of globex wait behind them."""
    Path("admission.yaml").write_text("tenant_policies: {'auth:globex': {max_in_flight: 1}}\n")
    load = ("--rate", 10, "--num-requests", 400, "--tenant-mix", "auth:acme:1,auth:globex:1", "--output-tokens", 100)
    result = maitred("simulate", *load, "--capacity", 64, "--admission-config", "admission.yaml")
    assert result.code == 0, result.err
    assert "! The tenant auth:globex starves: " in result.out


def test_a_run_that_keeps_no_requests_has_verdicts_too(maitred: Any) -> None:
    load = ("--rate", 90, "--num-requests", 900, "--output-tokens", 200)
    kept, streamed = (maitred("simulate", *load, *flags).out for flags in ((), ("--summary-only",)))
    verdicts = [line for line in kept.splitlines() if line.startswith("!")]
    assert verdicts
    assert [line for line in streamed.splitlines() if line.startswith("!")] == verdicts
