"""A real vLLM measured at two loads, and a third load predicted from them, beside the spread of its repeats.

    python bench/predict_vllm.py [--vllm .venv-vllm] [--rates 8,28,18] [--secs 20] [--repeats 3] [--keep FOLDER]

Needs the environment and the tiny model of `make vllm-test`, and two cores: vLLM (its API server and its engine) has the first
one, the clients the other. Every request has 40 to 160 prompt tokens and 30 to 90 output tokens, and streams.

    1. warm-up, then `maitred bench` at the first and the second rate; vLLM logs each step (--enable-logging-iteration-details)
    2. `maitred calibrate`: a table of the steps, and what the clients saw beyond them (`--clients`)
    3. `maitred bench --predict` at the third rate, `--repeats` times with the same requests

Printed are mean, p50 and p90 of TTFT, TPOT and E2E: each repeat, their mean, their spread, and the prediction with its error
against the mean. About 4 minutes. Timings of a busy machine say nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import processes
import real_engine
from maitred.cli.terminal import raise_file_limit
from maitred.sim import Results
from maitred.study.calibration.validation import Validation, predict
from maitred.study.candidate import Candidate
from maitred.study.live import bench
from maitred.workload import Job, synthetic

WARMUP_RATE, WARMUP_REQUESTS = 10.0, 100
PROMPT, OUTPUT = "uniform:40,160", "uniform:30,90"
ENGINE = f"""instance:
  max_num_seqs: {real_engine.SEQUENCES}
  max_num_batched_tokens: 2048
  max_model_len: 2048
  total_kv_blocks: 4096
  block_size_in_tokens: 32
"""
FLAGS = ("--enable-logging-iteration-details", "--max-model-len", "2048", "--max-num-batched-tokens", "2048")


def requests(rate: float, secs: float, seed: int) -> list[Job]:
    return list(synthetic(rate, round(rate * secs), seed=seed, input_tokens=PROMPT, output_tokens=OUTPUT))


def measure(url: str, jobs: Sequence[Job], path: Path | None = None) -> Results:
    """Send `jobs`, and keep what came of them in `path`."""
    found = bench(url, jobs)
    if path is not None:
        found.to_frame().write_csv(path)
    return found.rows


def calibrate(log: Path, timelines: Sequence[Path], folder: Path) -> Path:
    """Return the file with the engine and its fitted latency model."""
    engine, fitted = folder / "engine.yaml", folder / "fitted.yaml"
    engine.write_text(ENGINE)
    clients = [part for path in timelines for part in ("--clients", str(path))]
    command = [*processes.MAITRED, "calibrate", str(log), "--latency-model", "table", *clients, "--config", str(engine)]
    subprocess.run([*command, "--force", "--out", str(fitted), "--plot", str(folder / "residuals.png")], check=True)
    return fitted


def print_table(repeats: Sequence[Validation]) -> None:
    """Print each figure of each repeat, and the prediction."""
    print("| ms | repeats | mean | spread | predicted | error |")
    print("|---|---|---|---|---|---|")
    worst = 0.0
    for lines in zip(*(repeat.lines for repeat in repeats), strict=True):
        if lines[0].statistic not in ("mean", "p50", "p90"):
            continue
        measured = [line.measured for line in lines]
        mean, predicted = sum(measured) / len(measured), sum(line.predicted for line in lines) / len(lines)
        worst = max(worst, abs(predicted / mean - 1))
        each, spread = ", ".join(f"{value:.1f}" for value in measured), (max(measured) - min(measured)) / mean
        print(
            f"| {lines[0].metric.upper()} {lines[0].statistic} | {each} | {mean:.1f} | {spread:.1%} | {predicted:.1f} |"
            f" {predicted / mean - 1:+.1%} |"
        )
    print(f"the worst error is {worst:.1%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=Path, default=Path(os.environ.get("MAITRED_VLLM_VENV", ".venv-vllm")))
    parser.add_argument("--rates", default="8,28,18", help="requests per second: two to learn from, one to predict")
    parser.add_argument("--secs", type=float, default=20.0, help="length of a run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="folder for the log, the measured runs and the fitted file")
    args = parser.parse_args()
    low, high, third = map(float, args.rates.split(","))
    os.sched_setaffinity(0, {real_engine.OTHER_CORE})
    raise_file_limit()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        log = folder / "vllm.log"
        python = args.vllm.absolute() / "bin" / "python"
        with real_engine.run_engine(python, processes.free_ports(1)[0], real_engine.SEQUENCES, "fcfs", FLAGS, log) as engine:
            measure(engine.url, requests(WARMUP_RATE, WARMUP_REQUESTS / WARMUP_RATE, 1))
            timelines = [folder / "low.csv", folder / "high.csv"]
            for rate, path, seed in zip((low, high), timelines, (2, 3), strict=True):
                measure(engine.url, requests(rate, args.secs, seed), path)
            fitted = calibrate(log, timelines, folder)
            jobs = requests(third, args.secs, 4)
            measured = [measure(engine.url, jobs, folder / f"third-{number}.csv") for number in range(args.repeats)]
        candidate = Candidate.from_yaml(fitted)
        print_table([next(predict(jobs, candidate, found, seed=4)) for found in measured])


if __name__ == "__main__":
    main()
