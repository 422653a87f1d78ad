"""Record tests/vectors/vllm_plugin_steps anew. Needs vLLM and the tiny model that `make vllm-test` makes in .venv-vllm:

PYTHONPATH=src MAITRED_VLLM_MODEL=$PWD/.venv-vllm/tiny-model .venv-vllm/bin/python tests/plugins/real_vllm/record_vectors.py
"""

from __future__ import annotations

import gzip
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from vllm.v1.request import RequestStatus
from vllm_engines import StandaloneScheduler, prompt

VECTORS = Path(__file__).parents[2] / "vectors" / "vllm_plugin_steps"
POLICIES = {"fcfs": "fcfs", "bounded": "bounded(lpm, max_wait=0.002)", "vtc": "vtc(sjf)"}


def main() -> None:
    for name, policy in POLICIES.items():
        with TemporaryDirectory() as folder:
            path = Path(folder) / "steps.jsonl"
            record(policy, path)
            with (VECTORS / f"{name}.jsonl.gz").open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                packed.write(path.read_bytes())


def record(policy: str, path: Path) -> None:
    """Let 30 requests of three tenants, with shared prefixes and deadlines, come to an engine with little memory."""
    rng = Random(5)
    engine = StandaloneScheduler(
        {"scheduler": policy, "record_steps": str(path)}, max_num_seqs=4, num_blocks=34, max_num_batched_tokens=128
    )
    number = 0
    for step in range(200):
        while number < 30 and rng.random() < 0.45:
            length, shares = rng.choice([10, 40, 100, 250, 400]), rng.random() < 0.5
            engine.add(
                f"r{number}",
                prompt(length, number, shared=length // 2 if shares else 0, group=number % 3),
                rng.choice([1, 2, 30, 90]),
                priority=rng.randint(-1, 1),
                tenant=f"t{number % 3}",
                deadline_secs=rng.choice([0.1, 1, 5]),
            )
            number += 1
        if step in (20, 21, 30):
            engine.scheduler.finish_requests([*engine.scheduler.requests][-1], RequestStatus.FINISHED_ABORTED)
        engine.step()
    engine.run()
    engine.scheduler.shutdown()


if __name__ == "__main__":
    main()
