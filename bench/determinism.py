"""Check that the same seed gives the same bytes: results files by hash, and the table of docs/evidence.md.

    python bench/determinism.py --python python3.13 [--write docs/evidence.md]

Each scene is run by `maitred simulate --results-path`, as users do: with skipped steps and step by step, under other hash
seeds, several at a time, and by every other Python that is named, in which maitred must be installed. Exits with status 1 if
two files of a scene differ.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from policies import write

ROOT = Path(__file__).parents[1]
TRACE = "mooncake:tests/vectors/mooncake_conversation_head.jsonl.gz"
SCENES = {
    "synthetic, `sjf`, power of two": "--rate 40 --num-requests 1500 --num-instances 2 --scheduler sjf "
    "--routing-policy power-of-two",
    "sessions that wait for answers, prefix cache, `lpm`": "--workload-spec examples/workloads/agents.yaml --num-requests 1500 "
    "--enable-prefix-caching --scheduler lpm",
    "trace, prefix cache, `hrrn`": f"--trace {TRACE} --rate-scale 4 --num-instances 2 --enable-prefix-caching "
    "--total-kv-blocks 30000 --scheduler hrrn",
    "flow control, `random`": "--rate 60 --num-requests 1200 --num-instances 2 --class-mix interactive:1,bulk:2 --flow-control "
    "--saturation-detector utilization --scheduler random",
    "prefill and decode instances": "--rate 10 --num-requests 600 --num-instances 3 --prefill-instances 1 --decode-instances 2 "
    "--pd-kv-bytes-per-token 131072",
    "KV short, `srpt`": "--rate 20 --num-requests 400 --total-kv-blocks 600 --scheduler srpt",
}
NUM_PARALLEL = 3


class Variant(msgspec.Struct, frozen=True):
    """A variant in which a scene is run."""

    name: str
    python: str = sys.executable
    hash_seed: str = "0"
    flags: str = ""


def variants(pythons: Sequence[str]) -> list[Variant]:
    others = [Variant(f"{_version(python)}", python, hash_seed="7") for python in pythons]
    return [
        Variant(_version(sys.executable)),
        Variant("step by step", flags="--step-by-step"),
        Variant("another hash seed", hash_seed="123"),
        *others,
    ]


def _version(python: str) -> str:
    told = subprocess.run([python, "-V"], capture_output=True, text=True, check=True)
    return told.stdout.strip()


def digest(scene: str, variant: Variant) -> str:
    """Return the hash of the results file of one run."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "results.json")
        flags = [*SCENES[scene].split(), *variant.flags.split(), "--results-path", str(path)]
        command = [variant.python, "-m", "maitred", "simulate", *flags]
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": variant.hash_seed},
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise SystemExit(f"bench/determinism.py: {scene}, {variant.name}: {ended.stderr.strip()}")
        return sha256(path.read_bytes()).hexdigest()[:12]


def table(digests: dict[tuple[str, Variant], str], at_once: dict[str, set[str]], tried: Sequence[Variant]) -> Iterator[str]:
    """Return the table in Markdown."""
    yield f"| scene | {' | '.join(variant.name for variant in tried)} | {NUM_PARALLEL} processes at a time |"
    yield "|---|" + "---|" * (len(tried) + 1)
    for scene in SCENES:
        cells = [digests[scene, variant] for variant in tried] + [", ".join(sorted(at_once[scene]))]
        yield f"| {scene} | {' | '.join(f'`{cell}`' for cell in cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="*", default=[], help="other Pythons, in which maitred is installed")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this document")
    asked = parser.parse_args()
    tried = variants(asked.python)
    digests = {(scene, variant): digest(scene, variant) for scene in SCENES for variant in tried}
    with ThreadPoolExecutor(NUM_PARALLEL) as several:
        at_once = {scene: set(several.map(lambda _, of=scene: digest(of, tried[0]), range(NUM_PARALLEL))) for scene in SCENES}
    text = "\n".join(table(digests, at_once, tried))
    if asked.write:
        write(asked.write, "determinism.py", text)
    else:
        print(text)
    if any(at_once[scene] != {digests[scene, variant] for variant in tried} or len(at_once[scene]) > 1 for scene in SCENES):
        raise SystemExit("bench/determinism.py: these are not the same")


if __name__ == "__main__":
    main()
