"""File, environment and flags, merged key by key; the error message for each kind of mistake; and the flavour of an instance,
which gives other keys their defaults below all of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from maitred import config
from maitred.cli.app import app
from maitred.config import Config, ConfigSources, load
from maitred.config.merged import variable_warnings
from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass
from maitred.instance import InstanceConfig
from maitred.instance.flavours import FLAVOURS, FlavourName


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    def write(text: str) -> Path:
        path = tmp_path / "maitred.yaml"
        path.write_text(text)
        return path

    return write


def error(path: Path | None, flags: Mapping[str, object] = {}, env: Mapping[str, str] = {}) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, flags=flags, env=env)
    return str(caught.value).removeprefix(f"{path}:")


def test_without_sources_all_values_are_defaults(write) -> None:  # type: ignore[no-untyped-def]
    assert load(None) == Config()
    assert load(write("")) == Config()
    assert load(write("# a comment\ngateway:\nadmission:\n  classes:\n    bulk:\n")) == Config()


def test_lengths_may_be_a_number(write) -> None:  # type: ignore[no-untyped-def]
    assert load(write("engine: {output_tokens: 500}")).engine.output_tokens == 500


def test_flags_win_over_the_environment_over_the_file_key_by_key(write) -> None:  # type: ignore[no-untyped-def]
    path = write("engine: {host: file, port: 1, model: file}\n")

    found = load(
        path,
        env={"MAITRED_ENGINE__HOST": "env", "MAITRED_ENGINE__PORT": "2"},
        flags={"engine.port": 3, "engine.model": None},
    ).engine

    assert (found.host, found.port, found.model) == ("env", 3, "file")


def test_one_key_of_one_class_leaves_its_other_keys_at_the_defaults_of_that_class(write) -> None:  # type: ignore[no-untyped-def]
    admission = load(write("admission: {classes: {interactive: {queue_size: 7}}}")).admission
    interactive, bulk = admission.class_rules(PriorityClass.INTERACTIVE), admission.class_rules(PriorityClass.BULK)

    assert (interactive.queue_size, interactive.reserved_per_slot) == (7, 0.25)
    assert (interactive.queue_timeout_secs, bulk.queue_size) == (30.0, 1024)


def test_variables_are_read_as_the_type_of_their_key() -> None:
    found = load(
        None,
        env={
            "MAITRED_GATEWAY__BACKENDS": "[http://a:1, http://b:2]",
            "MAITRED_ENGINE__MODEL": "123",
            "MAITRED_ENGINE__SPEED": "0.5",
            "MAITRED_CLUSTER__CAPACITY": "null",
            "MAITRED_GATEWAY__QUEUE_TIMEOUT_STATUS": "503",
            "MAITRED_INSTANCE__STEP_BY_STEP": "true",
            "MAITRED_ADMISSION__CLASSES__BULK": "{queue_size: 3}",
        },
    )

    assert found.gateway.backends == ("http://a:1", "http://b:2")
    assert found.gateway.queue_timeout_status == 503
    assert (found.engine.model, found.engine.speed, found.cluster.capacity) == ("123", 0.5, None)
    assert found.instance.step_by_step is True
    assert load(None, env={"MAITRED_ENGINE__OUTPUT_TOKENS": "500"}).engine.output_tokens == "500"
    bulk = found.admission.class_rules(PriorityClass.BULK)
    assert (bulk.queue_size, bulk.queue_timeout_secs) == (3, 300.0)


def test_variables_that_are_not_ours_are_left_alone() -> None:
    """Kubernetes sets such variables for services called maitred and maitred-gateway."""
    env = {"MAITRED_PORT": "tcp://10.0.0.1:80", "MAITRED_SERVICE_HOST": "10.0.0.1", "HOME": "/", "GATEWAY__PORT": "x"}
    env |= {"MAITRED_GATEWAY_PORT": "tcp://10.0.0.1:80", "MAITRED_GATEWAY_SERVICE_HOST": "10.0.0.1"}

    assert load(None, env=env | {"MAITRED_GATEWAY": "{}"}) == Config()
    env |= {"MAITRED_GATEWAY_SERVICE_PORT_HTTP": "80", "MAITRED_GATEWAY_PORT_80_TCP_ADDR": "10.0.0.1"}
    others = {"MAITRED_SCHEDULER": "sjf", "MAITRED_HEALTH_URL": "http://a", "MAITRED_ADMISSION__MODE": "off"}
    assert [*variable_warnings(Config, env | others)] == []


def test_a_variable_that_sets_no_key_is_a_warning() -> None:
    env = {"MAITRED_ADMISSION_MODE": "off", "MAITRED_GATEWAY_PORT": "9000", "MAITRED_VLLM_MODEL": "m", "MAITRED_DISCOVER": "x"}
    warnings = [*variable_warnings(Config, env)]
    assert warnings == [
        "MAITRED_ADMISSION_MODE changes nothing: no such variable is read (did you mean MAITRED_ADMISSION__MODE?)",
        "MAITRED_DISCOVER changes nothing: no such variable is read (did you mean MAITRED_GATEWAY__DISCOVER?)",
        "MAITRED_GATEWAY_PORT changes nothing: no such variable is read (did you mean MAITRED_GATEWAY__PORT?)",
        "MAITRED_VLLM_MODEL changes nothing: no such variable is read",
    ]
    ended = CliRunner().invoke(app, ["simulate", "--help"], env={"MAITRED_ADMISSION_MODE": "off"})
    assert f"maitred: warning: {warnings[0]}" in ended.stderr.splitlines()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gatway: {}", "1: unknown key 'gatway' (did you mean 'gateway'?)"),
        ("gateway:\n  host: h\n  prot: 1\n", "3: unknown key 'gateway.prot' (did you mean 'port'?)"),
        (
            "admission:\n  classes:\n    bulk:\n      queue_sise: 1\n",
            "4: unknown key 'admission.classes.bulk.queue_sise' (did you mean 'queue_size'?)",
        ),
        ("admission: {classes: {Bulk: {}}}", "1: unknown key 'admission.classes.Bulk' (did you mean 'bulk'?)"),
        (
            "admission: {classes: {bulk: {wholly_else: 1}}}",
            "1: unknown key 'admission.classes.bulk.wholly_else' "
            "(valid: can_preempt, queue_size, queue_timeout_secs, reserved_floor, reserved_per_slot, "
            "starvation_threshold_secs)",
        ),
        ("\ngateway:\n  port: '80'\n", "3: gateway.port: expected a whole number, found '80'"),
        ("gateway: {port: 80.5}", "1: gateway.port: expected a whole number, found 80.5"),
        ("engine: {speed: fast}", "1: engine.speed: expected a number, found 'fast'"),
        ("engine: {model: 7}", "1: engine.model: expected text, found 7"),
        ("instance: {step_by_step: yes}", "1: instance.step_by_step: expected true or false, found 'yes'"),
        ("cluster: {capacity: many}", "1: cluster.capacity: expected a whole number, or nothing, found 'many'"),
        ("gateway: {backends: http://a}", "1: gateway.backends: expected a list, found 'http://a'"),
        ("gateway:\n  backends:\n    - http://a\n    - 7\n", "4: gateway.backends[1]: expected text, found 7"),
        (
            "gateway:\n  host: h\n  backends: [foo]\n",
            "3: gateway.backends: 'foo' is no http or https URL (write it as http://host:port)",
        ),
        (
            "gateway: {backends: [ftp://a]}",
            "1: gateway.backends: 'ftp://a' is no http or https URL (write it as http://host:port)",
        ),
        (
            "gateway: {backends: ['http://:80']}",
            "1: gateway.backends: 'http://:80' is no http or https URL (write it as http://host:port)",
        ),
        (
            "gateway: {backends: ['http://a:99999']}",
            "1: gateway.backends: 'http://a:99999' is no URL: its port is no number from 1 to 65535 (write it as http://host:port)",
        ),
        (
            "gateway: {backends: [http://a, http://a:80/]}",
            "1: gateway.backends: http://a is named twice (name each backend once)",
        ),
        ("gateway: {port: 70000}", "1: gateway.port must be from 0 to 65535, found 70000"),
        ("engine: {port: 70000}", "1: engine.port must be from 0 to 65535, found 70000"),
        ("cluster: {capacity: 0}", "1: cluster.capacity must be from 1 to 1,000,000,000 slots, not 0"),
        (
            f"cluster: {{capacity: 1{'0' * 400}}}",
            f"1: cluster.capacity must be from 1 to 1,000,000,000 slots, not 1{'0' * 400}",
        ),
        (
            f"gateway: {{slots_per_backend: 1{'0' * 400}}}",
            f"1: gateway.slots_per_backend must be from 1 to 1,000,000,000, found 1{'0' * 76}...",
        ),
        ("gateway: 5", "1: gateway: expected a section (keys with values), found 5"),
        ("- gateway", "1: the file: expected a section (keys with values), found a list"),
        (
            "admission:\n  classes:\n    bulk:\n      queue_size: 1\n      queue_timeout_secs: 0\n",
            "5: admission.classes.bulk.queue_timeout_secs must be > 0, and at most 1e+09 seconds, found 0",
        ),
        (
            "admission: {classes: {bulk: {reserved_per_slot: .nan}}}",
            "1: admission.classes.bulk.reserved_per_slot must be a share, 0 or more, found nan",
        ),
        (
            "routing:\n  policy: leest-loaded\n",
            "2: routing.policy: unknown routing policy 'leest-loaded' (did you mean 'least-loaded'?)",
        ),
        ("gateway: {queue_timeout_status: 500}", "1: gateway.queue_timeout_status: 500 cannot be chosen (valid: 408, 503)"),
        ("instance: {latency: {modle: linear}}", "1: unknown key 'instance.latency.modle' (did you mean 'model'?)"),
        (
            "instance: {latency: {beta: [1, 2, 3]}}",
            "1: instance.latency: the key 'model' is missing (valid: aiconfigurator, linear, roofline, table, trained-physics)",
        ),
        ("instance: {latency: {model: liner}}", "1: instance.latency.model: 'liner' cannot be chosen (did you mean 'linear'?)"),
        ("instance: {latency: {model: linear, beta: [1, 2]}}", "1: instance.latency.beta: expected a list of length 3, got 2"),
        ("instance: {scheduler: fcsf}", "1: instance.scheduler: unknown scheduler 'fcsf' (did you mean 'fcfs'?)"),
    ],
)
def test_a_mistake_in_the_file(write, text: str, message: str) -> None:  # type: ignore[no-untyped-def]
    assert error(write(text)) == message


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("MAITRED_GATEWAY__PROT", "1", "unknown key 'gateway.prot' (did you mean 'port'?)"),
        ("MAITRED_GATEWAY__PORT", "http", "gateway.port: expected a whole number, found 'http'"),
        ("MAITRED_GATEWAY__PORT__X", "1", "gateway.port: expected a whole number, found a section (keys with values)"),
        ("MAITRED_ENGINE__SPEED", "-1", "engine.speed must be a number above 0, found -1"),
        ("MAITRED_ENGINE__PORT__X__Y", "1", "engine.port: expected a whole number, found a section (keys with values)"),
        ("MAITRED_GATEWAY__BACKENDS__0", "a", "gateway.backends: expected a list, found a section (keys with values)"),
        ("MAITRED_GATEWY__PORT", "1", "unknown key 'gatewy' (did you mean 'gateway'?)"),
        (
            "MAITRED_FOO__BAR",
            "1",
            "unknown key 'foo' (valid: admission, cluster, engine, gateway, instance, programs, routing, scheduler)",
        ),
        ("MAITRED_GATEWAY__PORT", "\udcff", "this is not text (UTF-8)"),
        ("MAITRED_ENGINE__MODEL", "\udcff", "this is not text (UTF-8)"),
        ("MAITRED_GATEWAY__\udcff", "1", "this is not text (UTF-8)"),
        (
            "MAITRED_ROUTING__POLICY",
            "tombola",
            "routing.policy: unknown routing policy 'tombola' (valid: always-busiest, cache-aware, consistent-hashing, "
            "least-loaded, power-of-two, prefix-hash, random, round-robin, session-affinity, weighted, weighted-least-loaded, "
            "weighted-random; write one of your own as module:Class, of a file in the working directory or of an installed "
            "package)",
        ),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(name: str, value: str, message: str) -> None:
    assert error(None, env={name: value}) == f"{name}: {message}"


def test_a_list_in_a_variable_that_is_not_yaml() -> None:
    assert error(None, env={"MAITRED_GATEWAY__BACKENDS": "[a"}).startswith("MAITRED_GATEWAY__BACKENDS:1:3: not YAML")


def test_a_mistake_in_a_flag_names_the_flag() -> None:
    assert error(None, flags={"engine.port": 99_999}).startswith("--port: engine.port must be")
    assert error(None, flags={"cluster.num_instances": 0}).startswith("--num-instances: cluster.num_instances must be")
    with pytest.raises(ConfigError, match=r"^--backend: gateway\.backends"):
        load(None, flags={"gateway.backends": "http://a"}, flag_names={"gateway.backends": "--backend"})


def test_the_place_of_a_mistake_is_that_of_the_winning_value(write) -> None:  # type: ignore[no-untyped-def]
    path = write("engine: {port: bad}")

    assert error(path, flags={"engine.port": 70_000}).startswith("--port: ")
    assert load(path, flags={"engine.port": 7}).engine.port == 7
    assert error(write("engine: none"), env={"MAITRED_ENGINE__PORT": "1"}).startswith("1: engine: expected a section")


def test_a_setting_below_a_value_is_an_error_whatever_else_is_given(write) -> None:  # type: ignore[no-untyped-def]
    message = "MAITRED_GATEWAY__PORT__X: gateway.port: expected a whole number, found a section (keys with values)"

    assert error(write("gateway: {port: 81}"), env={"MAITRED_GATEWAY__PORT__X": "1"}) == message
    assert error(None, env={"MAITRED_GATEWAY__PORT": "81", "MAITRED_GATEWAY__PORT__X": "1"}) == message
    backends = error(write("gateway: {backends: [http://a]}"), env={"MAITRED_GATEWAY__BACKENDS__0": "http://b"})
    assert backends.startswith("MAITRED_GATEWAY__BACKENDS__0: gateway.backends: expected a list")


@pytest.mark.parametrize("key", ["x - at `$.engine`", "x - at `$.engine", "x` - at `$.engine", "x` - at `$.nowhere"])
def test_a_key_that_reads_like_a_message_is_an_unknown_key(write, key: str) -> None:  # type: ignore[no-untyped-def]
    path = write(f'"{key}": 1\n')

    assert "unknown key" in error(path)
    assert len(ConfigSources(file=path).problems()) == 1


def test_all_problems_of_a_file_at_once(write) -> None:  # type: ignore[no-untyped-def]
    path = write("gateway:\n  prot: 1\n  host: 7\nengine: {speed: 0}\nrouting: {policy: x}\n")

    found = [str(problem).removeprefix(f"{path}:").split(" ")[0] for problem in ConfigSources(file=path).problems()]

    assert sorted(found) == ["2:", "3:", "4:", "5:"]
    assert ConfigSources(file=write("gateway: {port: 1}")).problems() == []


@pytest.mark.parametrize("key", ["classes: {bulk: {queue_size: %d}}", "promotion_burst: %d", "tier_shed_threshold: %d"])
def test_a_whole_number_that_no_message_to_a_worker_holds(write, key: str) -> None:  # type: ignore[no-untyped-def]
    problem = error(write(f"admission: {{{key % 2**63}}}"))
    assert "expected a whole number of 64 bits at most, found 9223372036854775808" in problem
    assert ConfigSources(file=write(f"admission: {{{key % (2**63 - 1)}}}")).problems() == []
    assert (
        ConfigSources(file=write(f"admission: {{token_bucket_capacity: {2**70}}}")).problems() == []
    )  # a number, not a whole one


def test_the_first_hundred_of_thousands_of_mistakes(write) -> None:  # type: ignore[no-untyped-def]
    path = write("gateway:\n" + "".join(f"  k{i}: 1\n" for i in range(5_000)))
    *first, last = ConfigSources(file=path).problems()
    assert (len(first), str(last)) == (100, "there are more mistakes than these 100")


def test_a_wrong_value_is_not_said_to_be_missing_as_well(write) -> None:  # type: ignore[no-untyped-def]
    text = "admission: {flavour: smg, classes: {bulk: {queue_size: 1, queue_timeout_secs: 0}}}"
    problems = [problem.problem for problem in ConfigSources(file=write(text)).problems()]
    assert [problem for problem in problems if "queue_timeout_secs" in problem] == [
        "admission.classes.bulk.queue_timeout_secs must be > 0, and at most 1e+09 seconds, found 0"
    ]


@pytest.mark.parametrize("key", ["api_key", "tenant_api_keys", "upstream_api_key"])
def test_an_api_key_without_a_value_is_a_slip_and_opens_no_gateway(write, key: str) -> None:  # type: ignore[no-untyped-def]
    path = write(f"gateway:\n  {key}:\n")
    assert error(path) == f"2: gateway.{key} has no value (write the key, or leave the line out)"
    assert [problem.problem for problem in ConfigSources(file=path).problems()] == [f"gateway.{key} has no value"]


def test_an_api_key_that_a_variable_gives_may_be_without_a_value_in_the_file(write) -> None:  # type: ignore[no-untyped-def]
    found = load(write("gateway: {api_key: }"), env={"MAITRED_GATEWAY__API_KEY": "k"})
    assert found.gateway.has_keys


def test_a_key_contradicts_no_authentication(write) -> None:  # type: ignore[no-untyped-def]
    assert error(write("gateway: {auth: none, api_key: k}")).startswith("1: gateway.auth: none contradicts api_key")
    assert not load(write("gateway: {auth: none}")).gateway.has_keys


@pytest.mark.parametrize("key", ["connect_secs", "head_secs", "idle_secs", "keep_alive_secs"])
@pytest.mark.parametrize("value", ["-1", ".nan", ".inf", "1e10", "0"])
def test_times_of_the_upstream_client_have_a_range(write, key: str, value: str) -> None:  # type: ignore[no-untyped-def]
    path = write(f"gateway: {{upstream: {{{key}: {value}}}}}")
    if (key, value) == ("keep_alive_secs", "0"):
        assert load(path).gateway.upstream.keep_alive_secs == 0
    else:
        assert error(path).startswith(f"1: gateway.upstream.{key} must be ")


@pytest.mark.parametrize("key", ["max_connections", "max_head", "high_water"])
@pytest.mark.parametrize("value", ["0", "-5", "4294967296"])
def test_sizes_of_the_upstream_client_have_a_range(write, key: str, value: str) -> None:  # type: ignore[no-untyped-def]
    found = error(write(f"gateway: {{upstream: {{{key}: {value}}}}}"))
    assert found == f"1: gateway.upstream.{key} must be from 1 to 2,147,483,648, found {value}"


@pytest.mark.parametrize("key", ["health_interval_secs", "health_timeout_secs", "drain_secs"])
@pytest.mark.parametrize("value", [".inf", ".nan", "-1"])
def test_times_of_the_gateway_have_a_range(write, key: str, value: str) -> None:  # type: ignore[no-untyped-def]
    assert error(write(f"gateway: {{{key}: {value}}}")).startswith(f"1: gateway.{key} must be ")


@pytest.mark.parametrize("name", ["http://a", "a:80", "", "a b"])
def test_a_host_of_the_administrator_is_a_name(write, name: str) -> None:  # type: ignore[no-untyped-def]
    assert f"gateway.admin_hosts: {name!r} is no host name" in error(write(f"gateway: {{admin_hosts: ['{name}']}}"))


def test_loading_keeps_nothing(write) -> None:  # type: ignore[no-untyped-def]
    path = write("gateway: {port: 1}")
    assert config.load(path).gateway.port == 1
    write("gateway: {port: 2}")
    assert config.load(path).gateway.port == 2


def instance(tmp_path: Path, text: str = "", env: Mapping[str, str] = {}, **flags: object) -> InstanceConfig:
    file = tmp_path / "maitred.yaml"
    file.write_text(text)
    return load(file, env=env, flags={f"instance.{key}": value for key, value in flags.items()}).instance


@pytest.mark.parametrize("name", sorted(FLAVOURS))
def test_each_flavour_has_a_configuration_of_its_own_wherever_it_is_named(tmp_path: Path, name: FlavourName) -> None:
    expected = InstanceConfig(flavour=name)
    assert {key: getattr(expected, key) for key in FLAVOURS[name].keys} == dict(FLAVOURS[name].keys)
    assert instance(tmp_path, f"instance: {{flavour: {name}}}") == expected
    assert instance(tmp_path, env={"MAITRED_INSTANCE__FLAVOUR": name}) == expected
    assert instance(tmp_path, flavour=name) == expected


def test_what_any_source_gives_wins(tmp_path: Path) -> None:
    assert instance(tmp_path, "instance: {enable_prefix_caching: false}", flavour="trtllm").enable_prefix_caching is False
    env = {"MAITRED_INSTANCE__BATCHING": "max-utilization"}
    chosen = instance(tmp_path, "instance: {flavour: trtllm}", env)
    assert (chosen.batching, chosen.enable_prefix_caching) == ("max-utilization", True)
    assert InstanceConfig(flavour="vllm", async_scheduling=False).enable_prefix_caching


def test_without_a_flavour_the_keys_keep_their_defaults(tmp_path: Path) -> None:
    assert instance(tmp_path) == InstanceConfig() == Config().instance


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"flavour": "vllm", "batching": "max-requests"}, "batching is not for flavour vllm"),
        ({"flavour": "trtllm", "async_scheduling": True}, "async_scheduling is not for flavour trtllm"),
        ({"flavour": "trtllm", "batching": None}, "needs batching: batching='guaranteed-no-evict'"),
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
