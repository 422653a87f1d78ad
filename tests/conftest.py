"""Settings of Hypothesis, of garbage collection and of the processes that tests start, and the command `maitred` run in this
process.

Hypothesis looks for new examples on a developer's machine, and repeats the same in CI: a change fails for what it did.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings

import maitred.compat
from maitred.cli import main
from maitred.core.garbage import freeze

# A shell that starts the tests in the background has SIGINT ignored in them, and so in the processes that they interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
if sys.dont_write_bytecode:
    # Containers often say so. Each of the many processes that tests start would compile every module anew, which is half of
    # what its start costs. The processes of xdist inherit this, too. (.ci/run has one folder for all that it runs.)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = tempfile.mkdtemp(prefix="maitred-tests-")
    atexit.register(shutil.rmtree, os.environ["PYTHONPYCACHEPREFIX"], ignore_errors=True)

# The tests take all cores. A BLAS with threads of its own spins on cores that others have, where a fit of 500 rows took thirty
# times as long. It is read when NumPy is first imported, here and in the processes that tests start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# No balancer watches the gateways that tests start, so these need not wait for one when they end.
os.environ["MAITRED_GATEWAY__SETTLE_SECS"] = "0"

# Each run searches elsewhere, so what one of 50 examples does not find a later run may.
settings.register_profile("search", deadline=None, max_examples=50)
settings.register_profile("repeat", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("repeat" if os.environ.get("CI") else "search")


LONG = tuple(
    str(Path(__file__).parent / folder) + os.sep
    for folder in ("stress", "conformance", "demo", "docs", "study", "cli", "sim", "testing")
)
"""Folders in which single files take long."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: a fifth of their time they wait, for processes and sockets of their tests."""
    return len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)) + 1


class Rotated(pytest.Dir):
    """A folder that is collected from another place on, and then from its beginning to there."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        children = [*super().collect()]
        worker, workers = (int(os.environ[f"PYTEST_XDIST_WORKER{name}"].removeprefix("gw")) for name in ("", "_COUNT"))
        first = len(children) * worker // workers
        return children[first:] + children[:first]


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Begin elsewhere in each process of xdist. To rewrite the assertions of a file takes most of its collection, and they need
    not all do it: each finds in the cache of bytecode what another has rewritten."""
    is_ours = "PYTEST_XDIST_WORKER" in os.environ and path == Path(__file__).parent
    return Rotated.from_parent(parent, path=path) if is_ours else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with long files, so that the processes of xdist end together. The order is the same in all of them."""
    items.sort(key=lambda item: (not str(item.path).startswith(LONG), item.path))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without garbage collection: nine thousand tests stay, and would be looked at again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _what_is_there() -> Iterator[None]:
    """Exempt from garbage collection what was there before the tests of a file: modules, and nine thousand tests. To look at
    all of that again and again would take a third of the time of the suite.

    What the file itself leaves is collected at its end, so that a resource it has not closed is an error of this file.
    """
    freeze()
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def garbage_collection() -> Iterator[None]:
    """Undo what a test sets of garbage collection: a benchmark or server that runs in this process turns it off or sets its own
    thresholds, and every later test of the process would keep its cycles (3.6 GB at the end of the suite)."""
    thresholds = gc.get_threshold()
    yield
    if gc.get_threshold() != thresholds or not gc.isenabled():
        gc.enable()
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        gc.collect()
        freeze()


@pytest.fixture
def samples() -> Path:
    """Return the folder of tiny traces."""
    return Path(__file__).parent / "samples"


class CommandResult(msgspec.Struct):
    """The exit code of a command, and what it printed."""

    code: int
    out: str
    err: str


RunMaitred = Callable[..., CommandResult]


@pytest.fixture
def maitred(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> RunMaitred:
    """Run a command line in this process, in an empty folder, without the variables of the shell that runs the tests.

    Results are those of a process: the exit code, and everything written to the descriptors of stdout and stderr.
    """
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("MAITRED_")]:
        monkeypatch.delenv(name)

    def run(*arguments: object, env: Mapping[str, str] | None = None) -> CommandResult:
        with monkeypatch.context() as patch:
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["maitred", *map(str, arguments)])
            with pytest.raises(SystemExit) as ended:
                main()
        code: Any = ended.value.code
        out, err = capfd.readouterr()
        return CommandResult(code, out, err)

    return run
