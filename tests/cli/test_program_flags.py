"""ThunderAgent's flags, of `maitred serve`: what they give, and what they may not contradict."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from maitred.cli import serve
from maitred.cli.serve import ServeFlags, values_of
from maitred.config import ConfigSources
from maitred.core.errors import ConfigError

SERVE = ["serve", "--backend", "http://127.0.0.1:9", "--strict-config", "--state", "none"]


def load(*arguments: str) -> Any:
    """Return the configuration that a command line gives."""
    import typer

    app, found = typer.Typer(), []
    command = serve.run

    def keep(flags: ServeFlags) -> None:
        found.append(ConfigSources(flags=values_of(flags), flag_names=command.flag_names).load())

    app.command()(type(command)(keep, ServeFlags, command._groups).callback())
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return found[0]


def test_the_command_line_of_thunderagent() -> None:
    config = load(
        *("--backends", "http://a:1/, http://b:2,,", "--router", "tr", "--scheduler-interval", "2"),
        *("--acting-token-weight", "0.5", "--backend-type", "sglang", "--metrics", "--metrics-interval", "3"),
    )

    assert config.gateway.backends == ("http://a:1/", "http://b:2")
    assert (config.programs.mode, config.programs.scheduler_interval_secs) == ("tr", 2)
    assert config.programs.acting_estimator == "fixed(weight=0.5)"
    assert (config.programs.backend_type, config.programs.metrics_interval_secs) == ("sglang", 3)


def test_backends_come_beside_those_of_backend() -> None:
    assert load("--backend", "http://a:1", "--backends", "http://b:2").gateway.backends == ("http://a:1", "http://b:2")


@pytest.mark.parametrize("mode", ["tr", "default"])
def test_a_mode_leaves_the_routing_policy_alone(mode: str) -> None:
    config = load("--backends", "http://a:1", "--router", mode, "--routing-policy", "round-robin")
    assert (config.programs.mode, config.routing.policy) == (mode, "round-robin")


def test_any_other_router_is_a_routing_policy() -> None:
    config = load("--backends", "http://a:1", "--router", "round-robin")
    assert (config.programs.mode, config.routing.policy) == ("off", "round-robin")
    assert load("--router", "round-robin", "--routing-policy", "round-robin").routing.policy == "round-robin"


def test_decay_leaves_the_weight_without_effect() -> None:
    assert load("--acting-token-weight", "0.5", "--use-acting-token-decay").programs.acting_estimator == "decay"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--router", "round-robin", "--routing-policy", "random"], "--router: contradicts --routing-policy random"),
        (["--router", "ts"], "--router: unknown routing policy 'ts' (tr and default are about programs; as a routing policy: "),
        (["--router", "round-robbin"], "--router: unknown routing policy 'round-robbin' (tr and default are"),
        (
            ["--acting-token-weight", "1", "--acting-estimator", "decay"],
            "--acting-token-weight: contradicts --acting-estimator",
        ),
        (["--use-acting-token-decay", "--acting-estimator", "fixed"], "--use-acting-token-decay: contradicts --acting-est"),
        (["--acting-token-weight", "-1"], "--acting-token-weight: "),
        (["--acting-token-weight", "nan"], "--acting-token-weight: "),
        (["--scheduler-interval", "0"], "--scheduler-interval: "),
        (["--max-wait", "-1"], "--max-wait: "),
        (["--acting-estimator", "decai"], "--acting-estimator: "),
        (["--acting-estimator", "fixed(-1)"], "--acting-estimator: "),
        (["--backend-capacity-tokens", "0"], "--backend-capacity-tokens: "),
    ],
)
def test_a_mistake_names_its_flag(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(*flags)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(("backends", "where"), [("ftp://a", "--backend"), ("http://a:1,http://a:1", "--backend")])
def test_backends_that_cannot_be_used(maitred: Any, backends: str, where: str) -> None:
    result = maitred("serve", "--backends", backends, "--strict-config")
    assert result.code == 2
    assert result.err.startswith(f"maitred: error: {where}")
    assert len(result.err.splitlines()) == 1


def test_serving_without_any_backend(maitred: Any) -> None:
    result = maitred("serve", "--backends", " , ", "--router", "tr", "--state", "none")
    assert result.code == 2
    assert "no backend is named" in result.err


@pytest.mark.parametrize("caching", [True, False])
def test_programs_whose_kv_nothing_keeps_are_warned_of(maitred: Any, caching: bool) -> None:
    flags = ["--enable-prefix-caching"] if caching else []
    result = maitred("simulate", "--router", "tr", "--programs", "2", "--num-programs", "2", "--turns", "2", "--quiet", *flags)
    assert result.code == 0
    assert ("nothing keeps between their requests: give --enable-prefix-caching" in result.err) is not caching
