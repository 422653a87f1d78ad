"""`maitred.bench` and `maitred.compare_results`."""

import pytest
from endpoint_thread import engine, serving

import maitred
from maitred.core.errors import ConfigError


def test_a_measured_result_is_one_like_any_other(tmp_path):
    def workload():
        return maitred.synthetic(rate=200, num_requests=15, input_tokens=40, output_tokens=6)

    with serving(engine()) as url:
        runs = [maitred.bench(url, workload(), headers=[("X-Trace", "1")], chat=chat) for chat in (False, True)]
    live = runs[0]
    assert live.summary().total.completed == 15
    assert live.setup.in_one_line().startswith(f"measured: emulated at {url}; completions, streaming; seed 42")
    assert live.to_frame().height == 15
    live.report(tmp_path / "r.html")
    assert "What was measured" in (tmp_path / "r.html").read_text()
    simulated = [maitred.simulate(workload(), instance=maitred.InstanceConfig(latency="linear:2000,0,10"))] * 2
    found = maitred.compare_results(simulated, runs, names=("simulated", "measured"), metrics=["ttft_mean_ms", "tpot_mean_ms"])
    (pairing,) = found.pairings
    assert [each.metric for each in pairing.differences] == ["ttft_mean_ms", "tpot_mean_ms"]
    assert pairing.differences[0].b == pytest.approx(sum(r.summary().total.ttft.mean for r in runs) / 2_000)
    assert "2 runs, the same workload" in str(found)
    assert "model error" not in str(found)


def test_sides_with_different_numbers_of_runs_cannot_be_compared():
    run = maitred.simulate(maitred.synthetic(rate=5, num_requests=2))
    with pytest.raises(ConfigError, match="as many runs"):
        maitred.compare_results([run], [run, run])
    with pytest.raises(ConfigError, match="as many runs"):
        maitred.compare_results(run)
