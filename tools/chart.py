"""Render the Helm chart with each values file, and check what comes of it.

    python tools/chart.py            lint and render; writes deploy/helm/rendered/
    python tools/chart.py --check    the same, and fails if deploy/helm/rendered/ is not what comes of it

Helm is the binary `helm` where it is on PATH, or Helm's own library (`pip install helm-python-sdk`, 75 MB: Helm 4). What is
rendered is committed, with a digest of all that it was made of, so that tests notice a stale file where there is no Helm.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
HELM = ROOT / "deploy" / "helm"
CHART, VALUES, RENDERED = HELM / "maitred", HELM / "values", HELM / "rendered"
RELEASE, NAMESPACE = "maitred", "llm"
WARNING = 2  # the severity, as Helm counts


def digest(values: Path) -> str:
    """Return a digest of the chart and a file of values."""
    found = hashlib.sha256()
    for path in (*sorted(path for path in CHART.rglob("*") if path.is_file()), values):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def header(values: Path) -> str:
    """Return the first line of what is rendered with a file of values."""
    return f"# Rendered by tools/chart.py with values/{values.name}; made of {digest(values)}\n"


def render(values: Path) -> str:
    """Return the manifests. Raises RuntimeError with Helm's words if it finds anything wrong."""
    if shutil.which("helm") is not None:
        names = ("-f", str(values))
        _helm("lint", str(CHART), "--strict", *names)
        return _helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE, *names)
    try:
        import helm_python
    except ImportError:
        raise RuntimeError("needs Helm: the binary `helm`, or pip install helm-python-sdk") from None
    given = yaml.safe_load(values.read_text(encoding="utf-8"))
    try:
        found = helm_python.lint(CHART, values=given, strict=True)
        with helm_python.Chart.load(CHART) as chart:
            chart.validate_schema(given)
            files = chart.render(given, name=RELEASE, namespace=NAMESPACE)
    except helm_python.HelmError as error:
        raise RuntimeError(str(error)) from error
    wrong = [*found["errors"], *(each["error"] for each in found["messages"] if each["severity"] >= WARNING)]
    if wrong:
        raise RuntimeError("\n".join(wrong))
    manifests = {name: text for name, text in files.items() if name.endswith((".yaml", ".yml")) and text.strip()}
    return "".join(f"---\n# Source: {name}\n{text.strip()}\n" for name, text in sorted(manifests.items()))


def _helm(*arguments: str) -> str:
    done = subprocess.run(["helm", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout


def normal(manifests: str) -> list[object]:
    """Return the documents of manifests, so that the binary and the library of Helm can be compared."""
    return sorted((each for each in yaml.safe_load_all(manifests) if each), key=str)


def main() -> int:
    """Render all, and return the status."""
    parser = argparse.ArgumentParser(description="Render the Helm chart with each values file.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if what is committed is not what comes of it")
    check = parser.parse_args().check
    status = 0
    for values in sorted(VALUES.glob("*.yaml")):
        path = RENDERED / values.name
        try:
            text = header(values) + render(values)
        except RuntimeError as error:
            print(f"{values.name}: {error}", file=sys.stderr)
            status = 1
            continue
        is_same = path.exists() and path.read_text().startswith(header(values)) and normal(path.read_text()) == normal(text)
        if not is_same and check:
            print(f"{path.relative_to(ROOT)} is stale: python tools/chart.py", file=sys.stderr)
            status = 1
        elif not is_same:
            RENDERED.mkdir(exist_ok=True)
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")
        else:
            print(f"{path.relative_to(ROOT)}: {len(normal(text))} manifests, as committed")
    return status


if __name__ == "__main__":
    sys.exit(main())
