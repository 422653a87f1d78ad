"""Reading a measured run: its profile, its KV blocks, its shared prefixes."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
from msgspec.structs import replace

from maitred.core.contracts import BatchShape, ChunkShape
from maitred.core.errors import ConfigError
from maitred.study.calibration.layer_profile import read_profile
from maitred.study.calibration.measured_run import MeasuredRun, read_measured_run
from maitred.study.calibration.measurements import MeasuredRequest, MeasuredStep, read_steps, timeline_jobs

RUNS = Path(__file__).parents[2] / "vectors" / "vllm_timelines"
FILES = {
    "dense": "layer,tokens,time_us\nqkv,2,7\nqkv,1,5\n",
    "per_sequence": "layer,sequences,time_us\nsampler,1,3\n",
    "attention": "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1,16,9\n",
    "skew_fit": "pc,n_label,skew_rate_label,kv_big_label,alpha\n"
    "0,n<=8,sr<=15%,kvB<=4k,0.25\n0,n<=8,sr<=15%,kvB>4k,0.5\n0,n<=8,sr<=40%,kvB<=4k,0.75\n128,n<=8,sr<=15%,kvB<=4k,1\n",
}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    (tmp_path / "tp1").mkdir()
    for name, text in FILES.items():
        (tmp_path / "tp1" / f"{name}.csv").write_text(text)
    (tmp_path / "meta.yaml").write_text("skew_fit: {enabled: true}")
    return tmp_path


def test_curves_are_in_order(profile: Path) -> None:
    found = read_profile(profile, 1)

    assert found.dense == {"qkv": ((1.0, 5.0), (2.0, 7.0))}
    assert found.per_sequence == {"sampler": ((1.0, 3.0),)}
    assert found.attention == {(0, 0, 1, 16): 9.0}
    assert found.experts == {}


def test_what_unequal_lengths_cost_is_by_buckets(profile: Path) -> None:
    skew = read_profile(profile, 1).skew

    assert skew is not None
    assert skew.alphas_of(8, 0.15) == ((4096, 0.25), (inf, 0.5))
    assert skew.alphas_of(2, 0.16) == ((4096, 0.75), (inf, 0.0))  # never measured: nothing


def test_what_is_beyond_the_last_bucket_is_in_it(profile: Path) -> None:
    skew = read_profile(profile, 1).skew

    assert skew is not None
    assert skew.alphas_of(9, 0.9) == skew.alphas_of(8, 0.4)


def test_a_share_below_nothing_is_noise(profile: Path) -> None:
    path = profile / "tp1" / "skew_fit.csv"
    path.write_text(path.read_text().replace(",0.25", ",-0.25"))
    skew = read_profile(profile, 1).skew

    assert skew is not None
    assert skew.alphas_of(8, 0.15)[0] == (4096, 0.0)


def test_a_fit_without_buckets_is_said(profile: Path) -> None:
    path = profile / "tp1" / "skew_fit.csv"
    path.write_text(path.read_text().splitlines()[0] + "\n")

    with pytest.raises(ConfigError, match=r"skew_fit.csv: not a fit of unequal lengths"):
        read_profile(profile, 1)


def test_a_fit_that_is_off_does_not_count(profile: Path) -> None:
    (profile / "meta.yaml").write_text("skew_fit: {enabled: false}")

    assert read_profile(profile, 1).skew is None


def test_vllm_keeps_one_of_the_recorded_blocks_to_itself() -> None:
    assert read_measured_run(RUNS / "RTX4090_Llama-3.1-8B").instance().total_kv_blocks == 2588 - 1


def test_a_step_that_prefills_after_what_is_in_kv(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("prefill_tokens,decode_tokens,context_tokens,prefill_start,step_secs\n100,2,500,300,0.01\n")

    assert read_steps(path) == [MeasuredStep(BatchShape(2, 500, 100, (ChunkShape(100, 300, 400),)), pytest.approx(10_000))]


def test_a_prefix_is_that_of_the_first_request_that_is_long_enough() -> None:
    def row(sent: float, prompt: int, shared: int) -> MeasuredRequest:
        return MeasuredRequest(prompt, 5, sent, sent, sent, sent + 1, sent + 2, shared)

    jobs = timeline_jobs([row(3.0, 40, 0), row(3.5, 48, 0), row(4.0, 100, 3), row(4.5, 33, 2)])
    keys = [job.request.prefix.block_keys(16) for job in jobs if job.request.prefix is not None]

    assert [job.request.arrival for job in jobs] == [0, 500_000, 1_000_000, 1_500_000]
    assert [len(each) for each in keys] == [2, 3, 6, 2]
    assert keys[2][:3] == keys[1]
    assert keys[3] == keys[0]
    assert len({*keys[0], *keys[1], *keys[2]}) == 2 + 3 + 3


@pytest.mark.parametrize(
    ("version", "said", "ahead"),
    [
        ("0.19.0", None, True),
        ("0.14.0", None, True),
        ("v0.13.2", None, False),
        ("0.9.1", None, False),
        ("1.0", None, True),
        ("", None, True),
        ("0.19.0", False, False),
        ("0.9.1", True, True),
    ],
)
def test_an_engine_plans_ahead_if_it_was_told_to_or_its_version_does(version: str, said: bool | None, ahead: bool) -> None:
    meta = read_measured_run(RUNS / "RTX4090_Llama-3.1-8B").meta
    meta = replace(meta, vllm_version=version, engine_kwargs=replace(meta.engine_kwargs, async_scheduling=said))

    assert MeasuredRun(RUNS / "RTX4090_Llama-3.1-8B", meta).instance().async_scheduling is ahead
