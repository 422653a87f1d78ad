"""The flavour of an instance gives other keys their defaults: below files, the environment and flags, which win."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from maitred.cli.app import app
from maitred.config import Config, load
from maitred.core.errors import ConfigError
from maitred.instance import InstanceConfig
from maitred.instance.flavours import FLAVOURS, FlavourName


def instance(tmp_path: Path, text: str = "", env: Mapping[str, str] = {}, **flags: object) -> InstanceConfig:
    file = tmp_path / "maitred.yaml"
    file.write_text(text)
    return load(file, env=env, flags={f"instance.{key}": value for key, value in flags.items()}).instance


@pytest.mark.parametrize("name", sorted(FLAVOURS))
def test_each_flavour_has_a_configuration_of_its_own_wherever_it_is_named(tmp_path: Path, name: FlavourName) -> None:
    expected = InstanceConfig.of_flavour(name)
    assert {key: getattr(expected, key) for key in FLAVOURS[name].keys} == dict(FLAVOURS[name].keys)
    assert instance(tmp_path, f"instance: {{flavour: {name}}}") == expected
    assert instance(tmp_path, env={"MAITRED_INSTANCE__FLAVOUR": name}) == expected
    assert instance(tmp_path, flavour=name) == expected


def test_what_any_source_gives_wins(tmp_path: Path) -> None:
    assert instance(tmp_path, "instance: {enable_prefix_caching: false}", flavour="trtllm").enable_prefix_caching is False
    env = {"MAITRED_INSTANCE__BATCHING": "max-utilization"}
    chosen = instance(tmp_path, "instance: {flavour: trtllm}", env)
    assert (chosen.batching, chosen.enable_prefix_caching) == ("max-utilization", True)
    assert InstanceConfig.of_flavour("vllm", async_scheduling=False).enable_prefix_caching


def test_without_a_flavour_the_keys_keep_their_defaults(tmp_path: Path) -> None:
    assert instance(tmp_path) == InstanceConfig() == Config().instance


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"flavour": "vllm", "batching": "max-requests"}, "batching is not for flavour vllm"),
        ({"flavour": "trtllm", "async_scheduling": True}, "async_scheduling is not for flavour trtllm"),
        ({"flavour": "trtllm"}, "needs batching: InstanceConfig.of_flavour('trtllm')"),
    ],
)
def test_keys_that_a_flavour_does_not_take_are_an_error(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match="flavour") as caught:
        InstanceConfig(**keys)
    assert problem in str(caught.value)


def test_an_unknown_flavour_is_an_error_that_says_which_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        instance(tmp_path, flavour="tgi")
    assert all(name in str(caught.value) for name in get_args(FlavourName))


def test_check_prints_what_the_flavour_has_set(tmp_path: Path) -> None:
    file = tmp_path / "maitred.yaml"
    file.write_text("instance: {flavour: trtllm, batching: max-utilization}")
    output = CliRunner().invoke(app, ["check", str(file)]).output
    assert "flavour trtllm: batching max-utilization, enable_prefix_caching True" in output


def test_check_finds_what_only_the_parts_of_an_instance_know(tmp_path: Path) -> None:
    file = tmp_path / "maitred.yaml"
    file.write_text("instance: {flavour: sglang, sglang: {retraction_policy: priority}}")
    result = CliRunner().invoke(app, ["check", str(file)])
    assert isinstance(result.exception, ConfigError)
    assert "instance.sglang.retraction_policy: retraction_policy priority needs priorities" in str(result.exception)
