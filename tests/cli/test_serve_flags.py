"""`maitred serve`: wrong flags never start, strict mode prints every mistake, SMG's and ThunderAgent's flags mean what they
mean there, and where the programs of a gateway are kept.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from maitred.cli import main, scheduler, serve
from maitred.cli.flags import command
from maitred.cli.gateway_flags import SERVE as SERVE_FLAGS
from maitred.cli.made_gateway import default_state
from maitred.cli.serve import ServeFlags, num_workers, run, values_of
from maitred.cli.smg_flags import spread_values
from maitred.config import ConfigSources, LoadedConfig
from maitred.core.errors import ConfigError
from maitred.gateway.config import GatewayConfig, RetryConfig
from maitred.routing import RoutingConfig
from maitred.scheduler.ejection import EjectionConfig

BACKEND = ("--backend", "http://a:1")
Refused = Callable[..., list[str]]


@pytest.fixture
def refused(capsys: Any, monkeypatch: Any) -> Refused:
    """Return a function that gives the lines on stderr of a `maitred serve` that does not start."""

    def lines(*flags: object) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["maitred", "serve", *map(str, flags)])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 2
        said: str = capsys.readouterr().err
        return said.splitlines()

    return lines


def written(folder: Path, text: str, name: str = "maitred.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_wrong_flag_never_starts(refused: Refused) -> None:
    assert refused(*BACKEND, "--admission", "prio") == [
        "maitred: error: --admission: admission.mode: 'prio' cannot be chosen (did you mean 'priority'?)",
    ]


def test_two_ports_are_two(refused: Refused) -> None:
    (said,) = refused(*BACKEND, "--port", "9000", "--admin-port", "9000")
    assert said.startswith("maitred: error: --admin-port: ")
    assert said.endswith("admin_port must differ from port, found 9000")
    assert "admin_host needs admin_port" in refused(*BACKEND, "--admin-host", "127.0.0.1")[0]


def test_each_origin_has_its_flag(refused: Refused) -> None:
    (said,) = refused(*BACKEND, "--cors-origin", "https://app.example", "--cors-origin", "app.example")
    assert said.startswith("maitred: error: --cors-origin: ")
    assert "'app.example' is no origin" in said


def test_every_wrong_flag_is_told(refused: Refused) -> None:
    said = refused(*BACKEND, "--admission", "prio", "--port", "70000", "--max-attempts", "0")

    assert {line.split(": ")[2] for line in said} == {"--max-attempts", "--port", "--admission"}


def test_a_wrong_flag_never_starts_beside_a_file_that_is_wrong_as_well(refused: Refused, tmp_path: Path) -> None:
    """The file alone would be set aside; the flag is told, and the file with `--strict-config`."""
    file = written(tmp_path, "gateway: {backends: [http://a:1]}\nadmission:\n  mode: priority\n  colour: red\n")
    flags = ("--config", file, "--on-preempt", "rety")

    assert ["--on-preempt" in line for line in refused(*flags)] == [True]
    assert len(refused(*flags, "--strict-config")) == 2


def test_a_wrong_flag_is_told_if_a_file_cannot_be_read(refused: Refused, tmp_path: Path) -> None:
    assert "--admission" in refused(*BACKEND, "--config", tmp_path / "none.yaml", "--admission", "prio")[0]


def test_a_flag_that_is_wrong_only_with_the_file_never_starts(refused: Refused, tmp_path: Path) -> None:
    file = written(tmp_path, "gateway: {backends: [http://a:1]}\nadmission:\n  flow_control: {max_gateway_queue_depth: 0}\n")

    assert "queue_shedding has no effect" in refused("--config", file, "--flow-control", "--queue-shedding")[0]


def test_strict_mode_prints_every_mistake(refused: Refused, tmp_path: Path) -> None:
    text = "gateway: {backends: [http://a:1], port: -1}\nadmission:\n  mode: prio\n  classes: {bulk: {queue_size: many}}\n"

    said = refused("--config", written(tmp_path, text), "--strict-config")
    assert len(said) == 3
    assert all(line.startswith("maitred: error: ") and "maitred.yaml:" in line for line in said)


def test_strict_mode_prints_a_file_that_is_no_yaml_beside_wrong_flags(refused: Refused, tmp_path: Path) -> None:
    said = refused("--config", written(tmp_path, "gateway: ["), "--admission", "prio", "--strict-config")

    assert ["--admission" in line for line in said] == [True, False]


def served_with(monkeypatch: pytest.MonkeyPatch, *words: str) -> GatewayConfig:
    """Return the configuration with which `maitred serve` would start."""
    started: list[LoadedConfig] = []
    monkeypatch.setattr(sys, "argv", ["maitred", "serve", *words])
    monkeypatch.setattr(serve, "_serve", lambda _sources, loaded, _output: started.append(loaded))
    with contextlib.suppress(SystemExit):
        main()
    return started[0].config.gateway


def given(values: Mapping[str, object] | None = None, **flags: Any) -> dict[str, object]:
    return values_of(ServeFlags(values=values or {}, **flags))


def test_what_smgs_flags_mean() -> None:
    assert given({"gateway.backends": ["http://a:1"]}, worker_urls=["http://b:1", "http://c:1"]) == {
        "gateway.backends": ["http://a:1", "http://b:1", "http://c:1"],
    }
    assert given(disable_retries=True) == {"gateway.max_attempts": 1}
    assert given(policy="round_robin") == {"routing.policy": "round-robin"}
    assert given(policy="least-loaded") == {"routing.policy": "least-loaded"}
    assert given(priority_scheduler_enabled=True) == {"admission.mode": "priority"}
    assert run.key_flags["gateway.drain_secs"].alias == "--shutdown-grace-period-secs"


def test_smgs_retries_and_circuit_breaker_by_its_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    said = (
        "--retry-max-retries 4 --retry-initial-backoff-ms 50 --retry-max-backoff-ms 30000 --retry-backoff-multiplier 2 "
        "--retry-jitter-factor 0.1 --cb-failure-threshold 7 --cb-success-threshold 2 --cb-timeout-duration-secs 60 "
        "--cb-window-duration-secs 120"
    )
    config = served_with(monkeypatch, *BACKEND, *said.split())
    assert (config.max_attempts, config.retry) == (
        5,
        RetryConfig(initial_backoff_secs=0.05, max_backoff_secs=30.0, backoff_multiplier=2.0, backoff_jitter=0.1),
    )
    assert config.ejection == EjectionConfig(
        consecutive_failures=7, probe_successes=2, base_ejection_secs=60.0, window_secs=120.0
    )
    off = served_with(monkeypatch, *BACKEND, "--disable-circuit-breaker", "--disable-retries")
    assert (off.ejection.enabled, off.max_attempts) == (False, 1)


def test_a_scheduler_has_every_flag_of_a_gateway_that_is_not_about_connections_of_clients() -> None:
    clients = "host port workers data_plane sse_keepalive_secs cors_origin"
    link = "scheduler degraded degraded_after_secs wait_keepalive profile profile_dir"  # a gateway sees each answer
    of_schedulers = "listen advertise ext_proc ext_proc_tls_cert ext_proc_tls_key election lease_secs"
    serve_flags, scheduler_flags = set(run.parameters), set(scheduler.run.parameters)
    assert serve_flags - scheduler_flags == {*clients.split(), *link.split()}
    assert scheduler_flags - serve_flags == {*of_schedulers.split()}


@pytest.mark.parametrize(
    ("flags", "policy"),
    [
        ({"policy": "cache_aware"}, "cache-aware"),
        (
            {"policy": "cache_aware", "cache_threshold": 0.5, "balance_abs_threshold": 64, "balance_rel_threshold": 1.0001},
            "cache-aware(cache_threshold=0.5, balance_abs_threshold=64, balance_rel_threshold=1.0001)",
        ),
        ({"policy": "cache-aware", "balance_abs_threshold": 0}, "cache-aware(balance_abs_threshold=0)"),
        ({"policy": "prefix_hash"}, "prefix-hash"),
        (
            {"policy": "prefix_hash", "prefix_token_count": 64, "prefix_hash_load_factor": 2.0},
            "prefix-hash(prefix_token_count=64, load_factor=2.0)",
        ),
        ({"policy": "prefix_hash", "prefix_hash_balance_abs_threshold": 10}, "prefix-hash(balance_abs_threshold=10)"),
        ({"policy": "consistent_hashing"}, "consistent-hashing"),
        ({"policy": "manual"}, "session-affinity(policy=least-loaded, by=routing-key, balance_abs_threshold=inf)"),
        (
            {"policy": "manual", "assignment_mode": "random"},
            "session-affinity(policy=random, by=routing-key, balance_abs_threshold=inf)",
        ),
        ({"policy": "power_of_two"}, "power-of-two"),
        ({"policy": "random"}, "random"),
    ],
)
def test_what_smgs_routing_policies_are_here(flags: dict[str, Any], policy: str) -> None:
    assert given(**flags) == {"routing.policy": policy}
    RoutingConfig(policy=policy).router(Random(0))


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (
            {"policy": "bucket"},
            "--policy: bucket is a routing policy of SMG's that maitred does not have (the nearest is --policy least-loaded)",
        ),
        (
            {"policy": "least_load"},
            "--policy: least_load is a routing policy of SMG's that maitred does not have (the nearest is --policy "
            "'least-loaded(load=effective)')",
        ),
        (
            {"policy": "round_robin", "cache_threshold": 0.5},
            "--cache-threshold: has no effect with --policy round_robin (it is for --policy cache_aware)",
        ),
        ({"prefix_token_count": 5}, "--prefix-token-count: has no effect without --policy (it is for --policy prefix_hash)"),
        (
            {"policy": "manual", "assignment_mode": "min_group"},
            "--assignment-mode: unknown mode 'min_group' (one of min_load, random)",
        ),
    ],
)
def test_what_of_smgs_routing_is_not_there_is_refused(flags: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        given(**flags)
    assert str(caught.value) == complaint


def test_flow_control_is_a_mode() -> None:
    assert given(flow_control=True) == {"admission.mode": "flow-control"}


@pytest.mark.parametrize(
    ("values", "flags", "complaint"),
    [
        ({"gateway.max_attempts": 3}, {"disable_retries": True}, "--disable-retries: contradicts --max-attempts 3"),
        ({"routing.policy": "weighted"}, {"policy": "random"}, "--policy: contradicts --routing-policy weighted"),
        ({"admission.mode": "legacy"}, {"flow_control": True}, "--flow-control: contradicts --admission legacy"),
        ({}, {"flow_control": True, "priority_scheduler_enabled": True}, "--flow-control: contradicts --admission priority"),
    ],
)
def test_flags_that_contradict_each_other(values: dict[str, object], flags: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        given(values, **flags)
    assert str(caught.value) == f"{complaint} (give one of them)"


def test_several_urls_behind_one_name() -> None:
    words = ["--port", "1", "--worker-urls", "http://a:1", "http://b:1", "http://c:1", "--policy", "random", "left"]

    assert spread_values(words) == [
        *("--port", "1", "--worker-urls", "http://a:1", "--worker-urls", "http://b:1", "--worker-urls", "http://c:1"),
        *("--policy", "random", "left"),
    ]


def test_an_unknown_policy_is_told_with_those_there_are(refused: Refused) -> None:
    said = refused("--worker-urls", "http://a:1", "http://b:1", "--policy", "cache_awar")

    assert "unknown routing policy 'cache_awar'" in said[0]


SERVE = ["serve", "--backend", "http://127.0.0.1:9", "--strict-config", "--state", "none"]


def load(*arguments: str) -> Any:
    """Return the configuration that a command line gives."""
    import typer

    app, found = typer.Typer(), []

    def keep(flags: ServeFlags) -> None:
        found.append(ConfigSources(flags=values_of(flags), flag_names=serve.run.flag_names).load())

    app.command()(command(ServeFlags, *SERVE_FLAGS)(keep).callback())
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


@pytest.mark.parametrize(
    ("env", "port", "path"),
    [
        ({"XDG_STATE_HOME": "/state"}, 8080, "/state/maitred/programs-8080.sqlite"),
        ({"XDG_STATE_HOME": ""}, 80, str(Path("~/.local/state/maitred/programs-80.sqlite").expanduser())),
        ({}, 0, None),  # The next run has another port, and would not find it.
    ],
)
def test_a_file_for_each_port(env: dict[str, str], port: int, path: str | None) -> None:
    assert default_state(env, port) == path


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not say which processors may be used")
def test_as_many_workers_as_this_process_may_use_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 5, 7})
    assert num_workers("auto") == 3
    assert given({"gateway.workers": "2"})["gateway.workers"] == num_workers(2) == 2
