"""maitred's scheduler class fits vLLM 0.32 and 0.33 by what was read of their sources (tests/vectors/README.md)."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "tests" / "vectors" / "vllm_interface"
RELEASES = ("0.32", "0.33")
sys.path.insert(0, str(ROOT / "tools" / "vllm"))

from check_interface import CALLS, CLASSES, Plugin, describe, find_problems, read_interface, takes  # noqa: E402

from maitred.plugins.vllm import SUPPORTED  # noqa: E402

PLUGIN = Plugin()


def recorded(release: str = "0.33") -> dict[str, Any]:
    return read_interface(VECTORS / f"{release}.json", PLUGIN)


@pytest.mark.parametrize("release", RELEASES)
def test_the_class_fits(release: str) -> None:
    assert list(find_problems(recorded(release), PLUGIN)) == []
    assert recorded(release)["version"].startswith(release)


def test_each_release_that_is_supported_was_read() -> None:
    assert SUPPORTED == RELEASES


def test_033_asks_of_a_scheduler_whether_it_has_a_request() -> None:
    before, after = (recorded(release)["classes"]["SchedulerInterface"]["methods"] for release in RELEASES)
    assert after.keys() - before.keys() == {"has_request"}
    assert any(json.loads(call)["method"] == "has_request" for call in recorded()["calls"]["scheduler"])


def test_a_method_that_vllm_calls_and_that_is_missing_is_one_line() -> None:
    interface = recorded()
    del interface["classes"]["Scheduler"]["methods"]["has_request"]
    assert list(find_problems(interface, PLUGIN)) == [
        "SchedulerInterface.has_request is abstract, and neither vLLM's Scheduler nor maitred's has it"
    ]
    del interface["classes"]["SchedulerInterface"]["methods"]["has_request"]
    assert list(find_problems(interface, PLUGIN)) == ["vLLM calls has_request(_) of the scheduler, which has no such method"]


def test_what_a_wait_queue_is_asked_for_is_compared() -> None:
    interface = recorded()
    method = {"abstract": True, "names": ["request"], "required": 1, "keywords": {}, "any_more": [False, False]}
    interface["classes"]["RequestQueue"]["methods"]["peek_last"] = method
    interface["calls"]["waiting"] = [json.dumps({"method": "pop_request", "positional": 1, "keywords": ["reason"]})]
    assert list(find_problems(interface, PLUGIN)) == [
        "RequestQueue.peek_last is asked of a wait queue, and maitred's PolicyQueue has no such method",
        "vLLM calls pop_request(_, reason=_) of the wait queue, which takes nothing",
    ]


def test_what_the_class_relies_on_is_compared() -> None:
    interface = recorded()
    interface["classes"]["Request"]["attributes"].remove("num_stale_output_tokens")
    interface["classes"]["Scheduler"]["attributes"].remove("finished_req_ids")
    interface["classes"]["SchedulerConfig"]["attributes"].remove("watermark")
    for owner in ("SchedulerInterface", "Scheduler"):
        del interface["classes"][owner]["methods"]["shutdown"]
    interface["names"].remove("vllm.v1.kv_cache_interface.FullAttentionSpec")
    interface["calls"]["scheduler"] = []
    assert list(find_problems(interface, PLUGIN)) == [
        "maitred's Scheduler stands around Scheduler.shutdown, which vLLM does not have",
        "maitred reads Request.num_stale_output_tokens, which vLLM does not have",
        "maitred reads Scheduler.finished_req_ids, which vLLM does not have",
        "maitred reads SchedulerConfig.watermark, which vLLM does not have",
        "maitred imports vllm.v1.kv_cache_interface.FullAttentionSpec, which vLLM does not have",
    ]


@pytest.mark.parametrize(
    ("signature", "positional", "keywords", "fits"),
    [
        ("self", 0, [], True),
        ("self", 1, [], False),
        ("self, a, b=1", 1, [], True),
        ("self, a, b=1", 0, ["b"], False),
        ("self, a, b=1", 1, ["a"], False),
        ("self, a, *, c", 1, [], False),
        ("self, a, *, c=2", 0, ["a", "c"], True),
        ("self, *args, **kwargs", 3, ["x"], True),
        ("self, *args", 3, ["x"], False),
    ],
)
def test_a_method_takes_what_python_would_give_it(signature: str, positional: int, keywords: list[str], fits: bool) -> None:
    tree = ast.parse(f"class A:\n def m({signature}): ...").body[0]
    assert isinstance(tree, ast.ClassDef)
    assert takes(describe(tree)["methods"]["m"], positional, keywords) is fits


def a_wheel(path: Path, without: str = "") -> Path:
    """Write a wheel with the files that are looked at, whose classes are all alike, less the class `without`."""
    texts: dict[str, str] = {}
    for name, file in CLASSES.items():
        body = "" if name == without else f"class {name}:\n    def has_request(self, request_id): ...\n"
        texts[file] = texts.get(file, "") + body
    for file, _ in CALLS.values():
        texts[file] = (
            texts.get(file, "") + "def step(self):\n    self.scheduler.has_request(1)\n    self.waiting.pop_request()\n"
        )
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in texts.items():
            wheel.writestr(file, text)
        wheel.writestr("vllm-0.99.0.dist-info/METADATA", "")
    return path


def check(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "vllm" / "check_interface.py"), str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_reads_a_wheel_and_ends_with_1_if_it_does_not_fit(tmp_path: Path) -> None:
    done = check(a_wheel(tmp_path / "vllm.whl"))
    assert done.returncode == 1
    assert "vLLM 0.99.0: maitred reads Request.cache_salt, which vLLM does not have\n" in done.stdout
    assert "RequestQueue.has_request is asked of a wait queue, and maitred's PolicyQueue has no such method" in done.stdout
    done = check(VECTORS / "0.33.json")
    assert (done.returncode, done.stdout) == (0, "vLLM 0.33.0: maitred's scheduler class fits\n")


def test_sources_that_are_none_of_vllm_are_one_line(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", a_wheel(tmp_path / "other.whl", without="RequestQueue")):
        done = check(path)
        assert (done.returncode, done.stdout) == (1, "")
        assert "no sources of vLLM as they are known here" in done.stderr
        assert len(done.stderr.splitlines()) == 1
