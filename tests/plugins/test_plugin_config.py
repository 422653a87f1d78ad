"""The configuration of the scheduler class for vLLM, the releases that it is for, and life without vLLM."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from maitred.core.errors import ConfigError
from maitred.plugins.vllm import check_version
from maitred.plugins.vllm.config import made_policy, misplaced, read_config
from maitred.queueing.bounded import Bounded
from maitred.queueing.orders import FirstComeFirstServed, ShortestJobFirst
from maitred.queueing.priority import ByPriority

PLACE = "--additional-config maitred"


def test_nothing_given_is_first_come_first_served() -> None:
    assert isinstance(made_policy(read_config({}, {})), FirstComeFirstServed)


def test_the_keys_are_those_of_an_instance() -> None:
    config = read_config({"maitred": {"scheduler": "sjf", "enable_priority_scheduling": True}, "other": 1}, {})
    policy = made_policy(config)
    assert isinstance(policy, ByPriority)
    assert isinstance(policy.inner, ShortestJobFirst)


def test_the_environment_says_what_the_flag_does_not() -> None:
    env = {"MAITRED_SCHEDULER": "bounded(lpm, max_wait=5)", "MAITRED_SEED": "7", "MAITRED_ENABLE_PRIORITY_SCHEDULING": "true"}
    config = read_config({"maitred": {"enable_priority_scheduling": False}}, {**env, "MAITRED_GATEWAY__PORT": "1"})
    assert isinstance(made_policy(config), Bounded)
    assert (config.seed, config.enable_priority_scheduling, config.record_steps) == (7, False, None)


def test_what_changes_nothing_is_said() -> None:
    assert [*misplaced({"scheduler": "sjf", "other": 1}, {"MAITRED_SHEDULER": "sjf", "MAITRED_HEALTH_URL": "http://a"})] == [
        '--additional-config: scheduler changes nothing (write {"maitred": {"scheduler": ...}})',
        "MAITRED_SHEDULER changes nothing: no such variable is read (did you mean MAITRED_SCHEDULER?)",
    ]
    env = {"MAITRED_SCHEDULER": "sjf", "MAITRED_SCHEDULER__SECRET": "s", "MAITRED_SCHEDULER_PORT": "tcp://10.0.0.1:80"}
    assert [*misplaced({"maitred": {}, "seed": 1}, env), *misplaced(None, {})] == []


@pytest.mark.parametrize(
    ("additional", "env", "message"),
    [
        ({"maitred": {"schedular": "sjf"}}, {}, f"{PLACE}: unknown key 'schedular' (did you mean 'scheduler'?)"),
        ({"maitred": {"scheduler": 5}}, {}, f"{PLACE}: scheduler: expected text, found 5"),
        ({"maitred": "sjf"}, {}, f"{PLACE}: there should be keys with values"),
        ({"maitred": {"scheduler": "sjff"}}, {}, f"{PLACE}: unknown scheduler 'sjff' (did you mean 'sjf'?)"),
        ({"maitred": {"scheduler": "no_module:Mine"}}, {}, f"{PLACE}: cannot load scheduler 'no_module:Mine'"),
        ({}, {"MAITRED_SCHEDULER": "sjff"}, "MAITRED_SCHEDULER: unknown scheduler 'sjff' (did you mean 'sjf'?)"),
        ({}, {"MAITRED_SEED": "dice"}, "MAITRED_SEED: seed: expected a whole number, found 'dice'"),
        ({}, {"MAITRED_SEED": "\udcff"}, "MAITRED_SEED:1: not YAML: a character that text does not have (U+DCFF)"),
        ({"maitred": {"priority_policy": "rank"}}, {}, f"{PLACE}: unknown priority policy 'rank'"),
    ],
)
def test_a_mistake_is_one_line_that_says_where(additional: Any, env: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_config(additional, env)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1", "0.32.0+cpu", "0.32", "0.33.0"])
def test_releases_that_it_is_for(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.31.0", "0.34.0", "0.320.1", "1.0.0", ""])
def test_other_releases_are_named_with_those_that_would_be_right(version: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_version(version)
    assert str(raised.value) == f"maitred.plugins.vllm.Scheduler is for vLLM 0.32.* and 0.33.*, and this is vLLM {version}"


def test_the_scheduler_is_not_made_for_another_release(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("vllm")
    other.__version__ = "0.99.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", other)
    with pytest.raises(ConfigError, match=r"is for vLLM 0\.32\.\* and 0\.33\.\*, and this is vLLM 0\.99\.0"):
        from maitred.plugins.vllm import Scheduler  # noqa: F401


def test_without_vllm_only_the_scheduler_is_missing() -> None:
    """In a process of its own, in which no module called vllm can be found."""
    program = """\
import sys
sys.modules["vllm"] = None
import maitred.plugins.vllm, maitred.plugins.vllm.policy_queue, maitred.plugins.vllm.step_replay
try:
    maitred.plugins.vllm.Scheduler
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "ConfigError vLLM is not installed here (maitred.plugins.vllm.Scheduler runs inside vLLM)\n"
