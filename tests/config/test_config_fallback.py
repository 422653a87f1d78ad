"""The configuration in force if a part is invalid: the valid rest, without classes, and never without its API keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from maitred.admission import AdmissionConfig
from maitred.config import ConfigSources, load_or_fall_back
from maitred.core.errors import ConfigError

BACKENDS = "gateway:\n  backends: [http://a:1]\n"
BAD_CLASS = "admission:\n  mode: priority\n  classes: {bulk: {queue_size: many}}\n"


@pytest.fixture
def sources_of(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Return a function that makes sources of file contents:

    `sources_of("text of the main file", admission="text of the admission file", env=..., flags=...)`.
    """

    def sources_of(main: str | None = None, admission: str | None = None, **more: object) -> ConfigSources:
        files = {}
        for key, name, text in (("file", "main.yaml", main), ("admission_file", "admission.yaml", admission)):
            if text is not None:
                files[key] = tmp_path / name
                files[key].write_text(text)
        return ConfigSources(**files, **more)  # type: ignore[arg-type]

    return sources_of


def test_what_is_right_is_in_force_as_a_whole(sources_of) -> None:  # type: ignore[no-untyped-def]
    loaded = load_or_fall_back(sources_of(BACKENDS, "mode: priority\n"))

    assert loaded.problem is None
    assert loaded.config.admission.mode == "priority"


@pytest.mark.parametrize(
    ("main", "more", "message"),
    [
        (BACKENDS + BAD_CLASS, {}, "main.yaml:5: admission.classes.bulk.queue_size: expected a whole number"),
        (BACKENDS, {"admission": "mode: priority\nclases: {}\n"}, "admission.yaml:2: unknown key 'admission.clases'"),
        (BACKENDS, {"admission": "classes: [\n"}, "admission.yaml:2:1: not YAML"),
        (BACKENDS, {"env": {"MAITRED_ADMISSION__MODE": "prio"}}, "MAITRED_ADMISSION__MODE: admission.mode: 'prio' cannot"),
        (BACKENDS, {"env": {"MAITRED_ADMISSION__MODE": "\udcff"}}, "MAITRED_ADMISSION__MODE: this is not text"),
        (
            BACKENDS,
            {"flags": {"admission.mode": "prio"}, "flag_names": {"admission.mode": "--admission"}},
            "--admission: admission.mode: 'prio' cannot be chosen",
        ),
        (BACKENDS + "admission: priority\n", {}, "main.yaml:3: admission: expected a section"),
        (
            BACKENDS + "admission:\n  mode: priority\n  tenant_policies:\n    acme: {max_class: system}\n",
            {},
            "main.yaml:6: admission.tenant_policies: 'acme' matches no tenant: write auth:acme, header:acme",
        ),
    ],
)
def test_a_mistake_about_admission_leaves_the_gateway_as_it_is_without_classes(sources_of, main, more, message) -> None:  # type: ignore[no-untyped-def]
    loaded = load_or_fall_back(sources_of(main, **more))

    assert message in str(loaded.problem)
    assert "\n" not in str(loaded.problem)
    assert loaded.config.gateway.backends == ("http://a:1",)
    assert loaded.config.admission == AdmissionConfig()


def test_a_missing_admission_file_is_such_a_mistake(sources_of, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    loaded = load_or_fall_back(ConfigSources(file=sources_of(BACKENDS).file, admission_file=tmp_path / "nowhere.yaml"))

    assert "nowhere.yaml: cannot be read" in str(loaded.problem)
    assert loaded.config.admission.mode == "legacy"


def test_the_limits_without_classes_hold_where_they_are_right(sources_of) -> None:  # type: ignore[no-untyped-def]
    legacy = "  legacy: {max_concurrent_requests: 8}\n"
    kept = load_or_fall_back(sources_of(BACKENDS + BAD_CLASS + legacy, flags={"admission.legacy.queue_size": 3}))
    lost = load_or_fall_back(sources_of(BACKENDS + BAD_CLASS + "  legacy: {max_concurrent_requests: x}\n"))

    assert (kept.config.admission.legacy.max_concurrent_requests, kept.config.admission.legacy.queue_size) == (8, 3)
    assert lost.config.admission == AdmissionConfig()


@pytest.mark.parametrize("main", ["gateway: [\n", "gateway: {prot: 1}\n", "- x\n"])
def test_without_a_usable_file_flags_and_variables_that_name_backends_are_enough(sources_of, main: str) -> None:  # type: ignore[no-untyped-def]
    env = {"MAITRED_GATEWAY__PORT": "9000", "MAITRED_ADMISSION__MODE": "priority"}
    loaded = load_or_fall_back(sources_of(main, flags={"gateway.backends": ["http://b:1"]}, env=env))

    assert "main.yaml:" in str(loaded.problem)
    assert (loaded.config.gateway.backends, loaded.config.gateway.port) == (("http://b:1",), 9000)
    assert loaded.config.admission.mode == "legacy"


@pytest.mark.parametrize(
    ("main", "flags"),
    [
        ("gateway: {backends: [http://a:1], prot: 1}\n", {}),
        (BACKENDS, {"gateway.port": 70_000}),
        (BAD_CLASS, {}),
    ],
)
def test_the_mistake_is_raised_when_nothing_usable_is_left(sources_of, main: str, flags: dict[str, object]) -> None:  # type: ignore[no-untyped-def]
    sources = sources_of(main, flags=flags)
    with pytest.raises(ConfigError) as whole:
        sources.load()
    with pytest.raises(ConfigError) as caught:
        load_or_fall_back(sources)

    assert str(caught.value) == str(whole.value)


def test_a_file_with_keys_is_not_replaced_by_a_gateway_that_is_open_to_all(sources_of, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    backends: dict[str, object] = {"gateway.backends": ["http://b:1"]}
    locked = "gateway: {api_key: k, prot: 1}\n"
    with pytest.raises(ConfigError, match="prot"):
        load_or_fall_back(sources_of(locked, flags=backends))
    with pytest.raises(ConfigError, match="cannot be read"):
        load_or_fall_back(ConfigSources(file=tmp_path / "nowhere.yaml", flags=backends))

    loaded = load_or_fall_back(sources_of(locked, flags={**backends, "gateway.tenant_api_keys": {"acme": "k2"}}))
    assert loaded.config.gateway.tenant_api_keys.keys() == {"acme"}
    kept = load_or_fall_back(sources_of("gateway: {backends: [http://a:1], api_key: k}\n" + BAD_CLASS))
    assert kept.config.gateway.api_key is not None
