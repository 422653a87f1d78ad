"""The leaves of core: errors, units, registry, decisions."""

from __future__ import annotations

from enum import StrEnum

import pytest

from maitred.admission import ReleaseReason
from maitred.admission.inputs import Release
from maitred.core.decisions import Decision, DecisionLog
from maitred.core.errors import ConfigError, MaitredError, describe_json_error, describe_read_error, nearest_name_hint
from maitred.core.registry import Registry
from maitred.core.request import PriorityClass
from maitred.core.units import from_ms, from_seconds, to_ms, to_seconds


def test_an_error_has_place_problem_and_hint() -> None:
    error = ConfigError("unknown key 'prot'", where="maitred.yaml:3", hint="did you mean 'port'?")
    assert str(error) == "maitred.yaml:3: unknown key 'prot' (did you mean 'port'?)"
    assert str(ConfigError("no backend")) == "no backend"
    assert isinstance(error, MaitredError)


def test_nearest_names_one_or_shows_the_choice() -> None:
    assert nearest_name_hint("intercative", ["interactive", "bulk"]) == "did you mean 'interactive'?"
    assert nearest_name_hint("urgent", ["bulk", "default"]) == "valid: bulk, default"
    assert nearest_name_hint("x", []) == "there is nothing to choose from"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(2, "No such file or directory"), "no such file or directory"),
        (EOFError("Compressed file ended before the end-of-stream marker was reached"), "the gzip file ends in the middle"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "it is not text (UTF-8)"),
        (ValueError("whatever a library says"), "it is damaged, or of another kind"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_in_our_words(error: Exception, words: str) -> None:
    assert describe_read_error(error) == words


def test_json_of_another_kind_is_told_in_our_words() -> None:
    assert describe_json_error("Object contains unknown field `a`") == "it has a key 'a', which does not belong there"
    assert describe_json_error("Object missing required field `b`") == "it has no b"


def test_seconds_become_whole_microseconds_and_back() -> None:
    assert from_seconds(0.1) == 100_000
    assert from_seconds(1e-6 * 0.6) == 1
    assert from_ms(2.5) == 2500
    assert to_seconds(1_500_000) == 1.5
    assert to_ms(1500) == 1.5
    with pytest.raises(ValueError, match="NaN"):
        from_seconds(float("nan"))


def test_classes_are_ordered_and_named_as_users_type_them() -> None:
    assert PriorityClass.SYSTEM > PriorityClass.INTERACTIVE > PriorityClass.DEFAULT > PriorityClass.BULK
    assert [c.label for c in PriorityClass] == ["bulk", "default", "interactive", "system"]
    assert PriorityClass.from_label(" Interactive\t") is PriorityClass.INTERACTIVE
    assert PriorityClass.from_label("urgent") is PriorityClass.from_label("") is None


class Colour:
    """A kind of plug-in without required methods."""


class Red(Colour):
    pass


class Switch:
    """A kind of plug-in with required methods."""

    def choose(self) -> None: ...

    def left(self) -> None: ...


def colours() -> Registry[Colour]:
    registry: Registry[Colour] = Registry("colour", Colour, group="maitred.tests.none")
    registry.register("red")(Red)
    return registry


def test_a_policy_is_found_by_name_or_by_path() -> None:
    registry = colours()
    assert registry.get("red") is Red
    assert isinstance(registry.create("red"), Red)
    assert list(registry) == ["red"]
    assert "red" in registry
    assert "rad" not in registry
    assert registry.find("collections:OrderedDict").__name__ == "OrderedDict"
    with pytest.raises(ValueError, match="'red' is registered twice"):
        registry.register("red")(Colour)


def test_a_class_whose_constructor_cannot_be_read_is_no_policy() -> None:
    """Constructors in modules compiled with mypyc cannot be read."""
    with pytest.raises(TypeError, match="colour 'green' has no annotations: a compiled module cannot register policies"):
        colours().register("green")(dict)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rad", r"unknown colour 'rad' \(did you mean 'red'\?\)"),
        ("no.such.module:Red", r"cannot load colour 'no.such.module:Red'.*module:Class, of a file in the working directory"),
        ("collections:Nothing", r"cannot load colour .*has no 'Nothing'"),
        (":", r"cannot load colour ':'"),
        ("Red", r"unknown colour 'Red' \(did you mean 'red'\?\)"),
    ],
)
def test_an_unknown_policy_is_one_clear_error(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        colours().get(name)


@pytest.mark.parametrize("path", ["os:path", "os:getcwd", "collections:OrderedDict"])
def test_what_a_path_names_must_be_such_a_policy(path: str) -> None:
    registry: Registry[Switch] = Registry("router", Switch, group="maitred.tests.none", methods=["choose", "left"])
    with pytest.raises(ConfigError, match=rf"'{path}' is no router \(a class with choose\(\) and left\(\)\)"):
        registry.get(path)


class Action(StrEnum):
    ADMIT = "admit"


class Reason(StrEnum):
    SLOT_FREE = "slot_free"


def test_a_decision_log_is_lines_of_json_in_a_fixed_order() -> None:
    lines: list[bytes] = []
    log = DecisionLog(lines.append)
    log.log_input("admission", Release(7, 3, ReleaseReason.DRAINED))
    log.log_decisions("admission", [Decision(7, 3, Action.ADMIT, Reason.SLOT_FREE)])
    assert lines == [
        b'{"room":"log","version":3}\n',
        b'{"at":7,"end":"drained","id":3,"input":"release","room":"admission"}\n',
        b'{"decision":{"at":7,"subject":3,"action":"admit","reason":"slot_free","other":null,"retry_after":null},"room":"admission"}\n',
    ]
