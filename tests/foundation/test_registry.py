"""Plug-ins: how they are found, in the package of their kind, in the working directory and as entry points."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import maitred.kv
from maitred.core import registry
from maitred.core.errors import ConfigError
from maitred.core.registry import Registry
from maitred.queueing.base import SCHEDULERS
from maitred.routing.base import ROUTERS
from maitred.scheduler.discovery.base import SOURCES

ROOT = Path(__file__).parents[2]
MINE = """
class Mine:
    def __init__(self, sizes: tuple[int, ...] = (1, 2), label: str = "", exact: bool = False) -> None:
        self.said = (sizes, label, exact)

    def weigh(self):
        return 1
"""
REGISTERED = """
from maitred.kv.eviction import EVICTIONS, LeastRecentlyUsed


@EVICTIONS.register("mine")
class Mine(LeastRecentlyUsed):
    pass
"""


class Scale:
    """A kind of plug-in."""

    def weigh(self) -> int:
        raise NotImplementedError


class Iron(Scale):
    def weigh(self) -> int:
        return 8


class Balance(Scale):
    """Takes two others."""

    def __init__(self, left: Scale, right: Scale) -> None:
        self.left, self.right = left, right

    def weigh(self) -> int:
        return self.left.weigh() - self.right.weigh()


@pytest.fixture
def scales() -> Registry[Scale]:
    found: Registry[Scale] = Registry("scale", Scale, group="maitred.tests.scales", methods=["weigh"])
    found.register("iron")(Iron)
    found.register("balance")(Balance)
    return found


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory from which nothing is imported, as it is for the command `maitred`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return tmp_path


def test_a_file_in_the_working_directory_is_a_module(elsewhere: Path, scales: Registry[Scale]) -> None:
    (elsewhere / "scales_of_ones_own.py").write_text(MINE)
    made = scales.create("scales_of_ones_own:Mine(sizes=[3, 4], label='a, b (c)', exact=true)")
    assert vars(made) == {"said": ((3, 4), "a, b (c)", True)}
    assert scales.create("balance(iron, scales_of_ones_own:Mine)").weigh() == 7


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("broken_scales:Mine", r"cannot load scale 'broken_scales:Mine': SyntaxError: .*broken_scales.py, line 1"),
        ("raising_scales:Mine", r"cannot load scale 'raising_scales:Mine': ZeroDivisionError: division by zero"),
        ("hidden_scales:Mine", r"the parameters of scale 'hidden_scales:Mine' cannot be read: name 'Path' is not defined"),
        (
            "missing_scales:Mine",
            r"No module named 'missing_scales' \(write one of your own as module:Class, of a file in the working dir",
        ),
        (
            "good_scales:Mine(sizes=[3, x])",
            r"sizes is '\[3, x\]': expected a whole number .*its parameters: sizes, label, exact",
        ),
        ("good_scales:Mine(sizes=[3", "a bracket is not closed"),
        ("good_scales:Mine([1]=3)", r"'\[1\]' is no name of a parameter"),
        ("good_scales:Mine('unfinished)", "a name or value is missing before \"'unfinished"),
    ],
)
def test_what_is_wrong_with_it_is_one_line(elsewhere: Path, scales: Registry[Scale], written: str, complaint: str) -> None:
    (elsewhere / "good_scales.py").write_text(MINE)
    (elsewhere / "broken_scales.py").write_text("class Mine(:\n")
    (elsewhere / "raising_scales.py").write_text("1 / 0\n")
    hidden = MINE.replace("label: str", "label: Path")
    (elsewhere / "hidden_scales.py").write_text(f"from __future__ import annotations\n{hidden}")
    with pytest.raises(ConfigError, match=complaint) as error:
        scales.create(written)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "written", "meant"),
    [
        (SOURCES, "file:x.json", "file(x.json)"),
        (SOURCES, "dns:engines:8000", "dns(engines:8000)"),
        (SCHEDULERS, "vtc:lpm", "vtc(lpm)"),
        (SCHEDULERS, "random:3", "random(3)"),  # There is a module `random`.
        (ROUTERS, "power-of-two:2", "power-of-two(2)"),
    ],
)
def test_parameters_behind_a_colon_are_no_module(kind: Registry[Any], written: str, meant: str) -> None:
    with pytest.raises(ConfigError) as error:
        kind.get(written)
    assert error.value.hint == f"did you mean '{meant}'?"


def test_nothing_in_the_working_directory_hides_what_is_installed(elsewhere: Path, scales: Registry[Scale]) -> None:
    (elsewhere / "httptools.py").write_text(MINE)
    with pytest.raises(ConfigError, match="httptools has no 'Mine'"):
        scales.create("httptools:Mine")


def test_a_module_in_the_package_of_its_kind_is_found_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Nothing but the file: no list names it."""
    (tmp_path / "my_eviction.py").write_text(REGISTERED)
    monkeypatch.setattr(maitred.kv, "__path__", [*maitred.kv.__path__, str(tmp_path)])
    evictions = maitred.kv.EVICTIONS
    monkeypatch.setattr(evictions, "_searched", 0)
    request.addfinalizer(lambda: evictions._known.pop("mine", None))
    assert "mine" in evictions
    assert {"lfu", "lru", "mine", "mru"} <= set(evictions)
    assert evictions.create("slru(protected_threshold=3)") is not None


def test_an_entry_point_is_looked_up_and_checked_as_all_are(monkeypatch: pytest.MonkeyPatch, scales: Registry[Scale]) -> None:
    points = [
        EntryPoint("heavy", f"{__name__}:Iron", "maitred.tests.scales"),
        EntryPoint("gone", "no_such_module:Iron", "maitred.tests.scales"),
        EntryPoint("odd", "collections:OrderedDict", "maitred.tests.scales"),
    ]
    monkeypatch.setattr(registry, "_installed", lambda group, path: points if group == "maitred.tests.scales" else [])
    assert list(scales) == ["balance", "gone", "heavy", "iron", "odd"]
    assert scales.create("balance(heavy, iron)").weigh() == 0
    for name, complaint in (
        ("gone", "cannot load scale 'gone': No module named"),
        ("odd", r"no scale \(a class with weigh\(\)\)"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            scales.create(name)


def test_compiled_modules_say_so_and_register_no_policy() -> None:
    """mypyc leaves no annotations, from which the registry knows the parameters."""
    compiled = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["maitred"]["compiled"]
    assert len(compiled) > 20
    for module in compiled:
        source = ROOT / "src" / "maitred" / f"{module.replace('.', '/')}.py"
        text = source.read_text()
        assert not re.search(r"^@\w+\.register\(", text, re.MULTILINE), f"{module} registers a policy"
        assert "ompiled" in (ast.get_docstring(ast.parse(text)) or ""), f"{module} does not say that it is compiled"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sglang", "; import maitred.compat for those of other systems)"),
        ("trtllm-max-utilization", "(did you mean 'max-utilization'? import maitred.compat for those of other systems)"),
    ],
)
@pytest.mark.parametrize("is_imported", [True, False])
def test_policies_of_other_systems_are_known_once_these_are_imported(name: str, said: str, is_imported: bool) -> None:
    kind = "queueing import SCHEDULERS as policies" if name == "sglang" else "batching import BATCH_SCHEDULERS as policies"
    script = f"{'import maitred.compat' if is_imported else ''}\nfrom maitred.{kind}\nprint(policies.find('{name}'))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ran.returncode == 0, said in ran.stderr) == (is_imported, not is_imported), ran.stderr
