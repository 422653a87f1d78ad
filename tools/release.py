"""What a release by tag is made of, made on this machine and tried (docs/release.md).

    python tools/release.py --out dist [--tag v0.1.0] [--compiled]

The tag, `pyproject.toml` and the chart must have one number. Then: the sdist; of it, a wheel (of Python alone, or with
`--compiled` modules made with mypyc); that wheel in an empty environment, from which a gateway serves a chat; and the bill of
materials (CycloneDX) of exactly this environment. Needs what the extra `release` brings. Wheels for other Pythons and machines
are cibuildwheel's (`[tool.cibuildwheel]`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
TRIAL = """
import json, re, subprocess, sys, urllib.request
engine = [sys.executable, "-m", "maitred", "engine", "--port", "0", "--model", "demo"]
def start(*command):
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        found = re.search(r"maitred: .*? on (http://[\\d.:]+)", line)
        if found:
            return process, found[1]
    sys.exit(f"{command} did not start")
engine, url = start(*engine)
gateway, front = start(sys.executable, "-m", "maitred", "serve", "--port", "0", "--backend", url)
body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
request = urllib.request.Request(front + "/v1/chat/completions", json.dumps(body).encode())
answer = json.load(urllib.request.urlopen(request, timeout=30))
assert answer["usage"]["completion_tokens"] == 3, answer
for process in (gateway, engine):
    process.send_signal(2)
    assert process.wait(30) == 0
print("the wheel serves:", answer["choices"][0]["message"]["content"])
"""
"""What is run in the empty environment."""


class ReleaseError(Exception):
    """Something that keeps a release from being made."""


def version(tag: str | None) -> str:
    """Return the number of the release. Raises ReleaseError if what names one differs."""
    number: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "maitred" / "Chart.yaml").read_text(encoding="utf-8"))
    named = {"pyproject.toml": number, "Chart.yaml version": chart["version"], "Chart.yaml appVersion": chart["appVersion"]}
    if tag is not None:
        named["the tag"] = tag.removeprefix("v")
    if len(set(named.values())) > 1:
        raise ReleaseError("one number is needed: " + ", ".join(f"{where} has {what}" for where, what in named.items()))
    return number


def run(*command: str | Path, **env: str) -> None:
    """Run a command that must succeed."""
    print("+", *command, flush=True)
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([str(word) for word in command], check=True, env={**outside, **env}, cwd=ROOT)


def make(out: Path, number: str, *, is_compiled: bool) -> None:
    """Make all files of a release. Raises CalledProcessError, and ReleaseError if one is missing."""
    switch = {"MAITRED_COMPILE": "1" if is_compiled else ""}
    run(sys.executable, "-m", "build", "--outdir", out, **switch)  # the sdist, and the wheel of what is in it
    wheels = [*out.glob(f"maitred-{number}-*.whl")]
    if len(wheels) != 1 or not (out / f"maitred-{number}.tar.gz").exists():
        raise ReleaseError(f"{out} should have one sdist and one wheel of {number}: begin with an empty folder")
    with tempfile.TemporaryDirectory(prefix="maitred-release-") as name:
        venv.create(name, with_pip=True)
        python = Path(name) / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", wheels[0])
        run(python, "-m", "maitred", "--version")
        run(python, "-c", TRIAL)
        run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools")  # They are no part of it.
        run("cyclonedx-py", "environment", "--output-reproducible", "--output-file", out / f"maitred-{number}.cdx.json", python)


def main() -> int:
    """Make a release, and return the status."""
    parser = argparse.ArgumentParser(description="Make what a release by tag is made of, and try it.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="an empty folder; default: dist")
    parser.add_argument("--tag", help="the tag of the release, as v0.1.0")
    parser.add_argument("--compiled", action="store_true", help="compile the hot modules with mypyc, which takes minutes")
    given = parser.parse_args()
    try:
        number = version(given.tag)
        make(given.out.resolve(), number, is_compiled=given.compiled)
    except (ReleaseError, subprocess.CalledProcessError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print(f"maitred {number} is in {given.out}: {', '.join(sorted(path.name for path in given.out.iterdir()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
