"""The section `admission`: SMG's YAML as a file of its own, in both flavours; and API keys, which no output shows."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from maitred.admission.terms.config import AdmissionConfig
from maitred.admission.terms.presets import preset_of
from maitred.admission.terms.rules import overcommit_problem
from maitred.config import ConfigSources
from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass

SMG = """\
classes:
  interactive:
    reserved_floor: 3
    queue_size: 10
    queue_timeout_secs: 20
    starvation_threshold_secs: 5
    can_preempt: true
  bulk:
    reserved_floor: 0
    reserved_per_slot: 1.5
    queue_size: 0
    queue_timeout_secs: 600
    starvation_threshold_secs: 300
    can_preempt: false
tenant_policies:
  "auth:acme": {max_class: interactive}
  "header:batch": {max_class: bulk}
"""
INTERACTIVE, BULK = PriorityClass.INTERACTIVE, PriorityClass.BULK


@pytest.fixture
def admission(tmp_path: Path):  # type: ignore[no-untyped-def]
    def admission(text: str, **flags: object) -> AdmissionConfig:
        path = tmp_path / "smg.yaml"
        path.write_text(text)
        values = {f"admission.{key}": value for key, value in flags.items()}
        return ConfigSources(admission_file=path, flags=values).load().admission

    return admission


def wrong(admission, text: str, **flags: object) -> str:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError) as caught:
        admission(text, **flags)
    return str(caught.value).rpartition("smg.yaml:")[2]


def test_smgs_file_loads_unchanged(admission) -> None:  # type: ignore[no-untyped-def]
    smg = admission(SMG, mode="priority", flavour="smg")

    assert (smg.class_rules(INTERACTIVE).reserved_floor, smg.class_rules(INTERACTIVE).reserved_per_slot) == (
        3,
        0.0,
    )  # not the built-in share
    assert (smg.class_rules(BULK).queue_size, smg.class_rules(BULK).reserved_per_slot) == (0, 1.5)
    assert smg.class_rules(PriorityClass.SYSTEM) == preset_of("smg").classes[PriorityClass.SYSTEM]
    caps = [smg.class_cap(tenant) for tenant in ("auth:acme", "header:batch", "x")]
    assert caps == [INTERACTIVE, BULK, PriorityClass.DEFAULT]


def test_the_same_file_in_our_flavour_is_merged_key_by_key(admission) -> None:  # type: ignore[no-untyped-def]
    ours = admission(SMG.replace("1.5", "0.5"), mode="priority")

    assert (ours.class_rules(INTERACTIVE).reserved_floor, ours.class_rules(INTERACTIVE).reserved_per_slot) == (3, 0.0)
    assert ours.class_rules(PriorityClass.SYSTEM) == preset_of("maitred").classes[PriorityClass.SYSTEM]


def shares(config: AdmissionConfig) -> list[float]:
    """Return the shares that the classes reserve, most urgent first."""
    return [config.class_rules(c).reserved_per_slot for c in reversed(PriorityClass)]


def test_a_file_of_floors_reserves_the_floors_and_no_share(admission) -> None:  # type: ignore[no-untyped-def]
    """SMG's files need not mention `reserved_per_slot`, and mean no share then."""
    floors = admission("classes: {interactive: {reserved_floor: 1}, bulk: {queue_size: 3}}", mode="priority")

    assert shares(floors) == [0, 0, 0, 0]
    assert [line for line in floors.warnings() if "floors" in line] == [
        "classes have floors and no shares: system reserves nothing (say its reserved_per_slot, or 0, to decide it)",
    ]
    assert floors.class_rules(INTERACTIVE).reserved_floor == 1
    assert overcommit_problem(floors, 1) is None


def test_a_floor_beside_shares_stands_for_its_own_class(admission) -> None:  # type: ignore[no-untyped-def]
    mixed = admission("classes: {interactive: {reserved_floor: 1}, bulk: {reserved_per_slot: 0.1}}", mode="priority")
    both = admission("classes: {interactive: {reserved_floor: 1, reserved_per_slot: 0.5}}", mode="priority")

    assert shares(mixed) == [0.05, 0, 0, 0.1]
    assert shares(both) == [0.05, 0.5, 0, 0]


def test_without_floors_the_shares_of_the_flavour_hold(admission) -> None:  # type: ignore[no-untyped-def]
    assert shares(admission("classes: {interactive: {queue_size: 3}}", mode="priority")) == [0.05, 0.25, 0, 0]


@pytest.mark.parametrize("text", ["", "# nothing\n", "classes:\ntenant_policies:\n", "{}"])
def test_an_empty_file_gives_no_values(admission, text: str) -> None:  # type: ignore[no-untyped-def]
    assert admission(text) == AdmissionConfig()
    assert admission(text, flavour="smg") == AdmissionConfig(flavour="smg")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("    can_preempt: true\n", ""), "2: admission.classes.interactive: missing field `can_preempt`"),
        (("  bulk:", "  Bulk:"), "8: unknown key 'admission.classes.Bulk' (did you mean 'bulk'?)"),
        (("queue_size: 10", "queue_sise: 10"), "4: unknown key 'admission.classes.interactive.queue_sise'"),
        (
            ("queue_timeout_secs: 20", "queue_timeout_secs: 0"),
            "5: admission.classes.interactive.queue_timeout_secs must be > 0",
        ),
        (("starvation_threshold_secs: 300", "starvation_threshold_secs: 0"), "13: admission.classes.bulk.starvation_threshold"),
        (("1.5", ".nan"), "10: admission.classes.bulk.reserved_per_slot must be a share"),
        (
            ("max_class: bulk", "max_class: urgent"),
            "17: admission.tenant_policies.header:batch.max_class: 'urgent' cannot be chosen",
        ),
        (("classes:", "clases:"), "1: unknown key 'admission.clases' (did you mean 'classes'?)"),
    ],
)
def test_mistakes_have_their_line(admission, change: tuple[str, str], message: str) -> None:  # type: ignore[no-untyped-def]
    assert wrong(admission, SMG.replace(*change), flavour="smg").startswith(message)


def test_a_bare_tenant_key_is_an_error_and_under_smg_a_warning(admission) -> None:  # type: ignore[no-untyped-def]
    text = "tenant_policies:\n  auth:x: {max_class: bulk}\n  acme: {max_class: system}\n"

    assert wrong(admission, text).startswith("3: admission.tenant_policies: 'acme' matches no tenant: write auth:acme")
    smg = admission(text, flavour="smg", mode="priority")
    assert [line for line in smg.warnings() if "acme" in line]


def test_an_admission_file_goes_between_the_main_file_and_the_environment(tmp_path: Path) -> None:
    main, more = tmp_path / "main.yaml", tmp_path / "admission.yaml"
    main.write_text("admission:\n  mode: priority\n  classes: {bulk: {queue_size: 1, queue_timeout_secs: 1}}\n")
    more.write_text("classes:\n  bulk: {queue_size: 2, queue_timeout_secs: 2}\n  interactive:\n")

    found = (
        ConfigSources(file=main, admission_file=more, env={"MAITRED_ADMISSION__CLASSES__BULK__QUEUE_SIZE": "3"})
        .load()
        .admission
    )

    assert found.mode == "priority"
    assert (found.class_rules(BULK).queue_size, found.class_rules(BULK).queue_timeout_secs) == (3, 2)
    more.write_text("classes:\n  bulk: {queue_timeout_secs: 0}\n")
    with pytest.raises(ConfigError, match=r"admission\.yaml:2: admission\.classes\.bulk\.queue_timeout_secs"):
        ConfigSources(file=main, admission_file=more).load()


def test_of_keys_only_hashes_are_kept() -> None:
    digest = "sha256:" + hashlib.sha256(b"s3cret").hexdigest()
    values = {"gateway.api_key": "s3cret", "gateway.tenant_api_keys": {"acme": digest.replace("sha256:", "").upper()}}
    values["gateway.tenant_api_keys"] = {"acme": "sha256:" + hashlib.sha256(b"other").hexdigest().upper()}

    gateway = ConfigSources(flags=values).load().gateway

    assert gateway.api_key == digest
    assert gateway.tenant_api_keys == {"acme": "sha256:" + hashlib.sha256(b"other").hexdigest()}
    assert "s3cret" not in repr(gateway)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"gateway.api_key": ""}, "gateway.api_key must be visible ASCII characters without spaces"),
        ({"gateway.api_key": "s3 cret"}, "gateway.api_key must be visible ASCII characters without spaces"),
        ({"gateway.api_key": "sha256:s3cret"}, "gateway.api_key must have 64 hexadecimal digits after sha256:"),
        ({"gateway.api_key": "sha256:" + hashlib.sha256(b"").hexdigest()}, "gateway.api_key is the hash of an empty text"),
        ({"gateway.upstream_api_key": "s3 cret"}, "gateway.upstream_api_key must be visible ASCII"),
        ({"gateway.tenant_api_keys": {"acme": "s3 cret"}}, "gateway.tenant_api_keys.acme must be visible ASCII"),
        ({"gateway.tenant_api_keys": {"acme": ["k", "s3 cret"]}}, "gateway.tenant_api_keys.acme[1] must be visible ASCII"),
        ({"gateway.tenant_api_keys": {"acme": []}}, "gateway.tenant_api_keys.acme is an empty list"),
        (
            {"gateway.tenant_api_keys": {"a": ["k", "s3cret"], "b": ["s3cret"]}},
            "gateway.tenant_api_keys.b is the same key as tenant_api_keys.a",
        ),
        ({"gateway.tenant_api_keys": {" a": "s3cret"}}, "gateway.tenant_api_keys: ' a' is no id of a tenant"),
        (
            {"gateway.tenant_api_keys": {"a": "s3cret", "b": "sha256:" + hashlib.sha256(b"s3cret").hexdigest()}},
            "gateway.tenant_api_keys.b is the same key as tenant_api_keys.a",
        ),
        (
            {"gateway.api_key": "s3cret", "gateway.tenant_api_keys": {"a": "s3cret"}},
            "gateway.tenant_api_keys.a is the same key as api_key",
        ),
    ],
)
def test_an_error_about_an_api_key_does_not_show_the_key(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ConfigSources(flags=keys).load()

    assert message in str(caught.value)
    assert "s3" not in str(caught.value)


def test_a_key_of_another_type_is_not_shown_either(tmp_path: Path) -> None:
    path = tmp_path / "main.yaml"
    path.write_text("gateway:\n  api_key: 123456\n")
    with pytest.raises(ConfigError, match=r"main\.yaml:2: gateway\.api_key: expected text, or nothing, found \*\*\*"):
        ConfigSources(file=path).load()
    path.write_text("gateway:\n  tenant_api_keys: {acme: [123456]}\n")
    with pytest.raises(ConfigError) as caught:
        ConfigSources(file=path).load()
    assert "123456" not in str(caught.value)


def test_the_budget_for_bodies_holds_at_least_one() -> None:
    with pytest.raises(ConfigError, match="max_parked_body_bytes must be at least max_body_bytes"):
        ConfigSources(flags={"gateway.max_body_bytes": 100, "gateway.max_parked_body_bytes": 99}).load()
