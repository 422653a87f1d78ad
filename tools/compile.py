"""Compile the hot modules of a simulation with mypyc: the same source, about 1.7 times as fast.

    python tools/compile.py build/compiled          (`make compile`)

The package is copied to that folder. The modules that pyproject.toml names (`[tool.maitred] compiled`) get a compiled sibling
there, which Python prefers. With that folder first on PYTHONPATH they run; nothing in `src` changes, so compiled code that is
older than its source never runs by accident. Needs a C compiler and Python's headers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = """\
[mypy]
follow_imports = silent
"""
"""mypyc needs the types; `make check` checks them strictly."""
FAILED = "not compiled: this needs a C compiler and Python's headers. maitred works without, only slower."


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/compile.py FOLDER")
    target = Path(sys.argv[1]).resolve()
    if target.exists() and not (target / "maitred").is_dir():
        sys.exit(f"{target} is something else, and would be written over; name a new folder")
    modules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["maitred"]["compiled"]
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "src" / "maitred", target / "maitred", ignore=shutil.ignore_patterns("__pycache__"))
    (target / "mypyc.ini").write_text(SETTINGS)
    files = [f"maitred/{name.replace('.', '/')}.py" for name in modules]
    command = [sys.executable, "-m", "mypyc", "--config-file=mypyc.ini", *files]
    level = os.environ | {"MYPYC_OPT_LEVEL": "3"}
    done = subprocess.run(command, cwd=target, env=level, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(target)
        sys.exit(f"{done.stdout}{done.stderr}\n{FAILED}")
    shutil.rmtree(target / "build", ignore_errors=True)
    print(f"{len(modules)} modules compiled; to run them: PYTHONPATH={sys.argv[1]}")


if __name__ == "__main__":
    main()
