"""YAML as values with places: which scalars are text, and errors with line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from maitred.core.errors import ConfigError
from maitred.core.yaml_document import YamlDocument


def message_of(text: str) -> str:
    """Return the error message for a document."""
    with pytest.raises(ConfigError) as caught:
        YamlDocument(text, "f.yaml")
    return str(caught.value)


def test_scalars_follow_the_core_schema_of_yaml_1_2() -> None:
    text = """
      yes: on
      octal: 010
      hours: 1:30
      day: 2026-01-31
      integers: [0, -7, 1_000, 0x1F, 0o17]
      numbers: [1.5, .5, 1e3, -2.5e-3, .inf, -.inf]
      truth: [true, False]
      nothing: [~, null, ""]
      empty:
    """

    assert YamlDocument(text, "f.yaml").value == {
        "yes": "on",
        "octal": "010",
        "hours": "1:30",
        "day": "2026-01-31",
        "integers": [0, -7, 1000, 31, 15],
        "numbers": [1.5, 0.5, 1000.0, -0.0025, float("inf"), float("-inf")],
        "truth": [True, False],
        "nothing": [None, None, ""],
        "empty": None,
    }


def test_a_whole_number_as_a_key_is_its_text() -> None:
    document = YamlDocument("a:\n  128: 0.5\n  256: 0.5\n", "f.yaml")

    assert document.value == {"a": {"128": 0.5, "256": 0.5}}
    assert document.where(("a", "256")) == "f.yaml:3"
    assert message_of("1: x\n'1': y") == "f.yaml:2: '1' is given twice (first in line 1)"


def test_aliases_stand_for_what_they_name() -> None:
    assert YamlDocument("a: &x {k: 1}\nb: *x\n", "f.yaml").value == {"a": {"k": 1}, "b": {"k": 1}}


def test_aliases_of_aliases_are_not_followed_for_ever() -> None:
    """Eleven lines describe 10^10 values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 11)]

    assert message_of("\n".join(lines)) == "f.yaml:1: more than 100,000 values (do aliases repeat each other?)"


def test_a_place_is_the_line_of_the_key() -> None:
    document = YamlDocument("a:\n  b:\n    - x\n    - y\nc: 1\n", "f.yaml")

    assert document.where(("a", "b", 1)) == "f.yaml:4"
    assert document.where(("c",)) == "f.yaml:5"
    assert document.where(()) == "f.yaml:1"
    assert document.where(("a", "nowhere")) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: 'a' is given twice (first in line 1)"),
        ("a: {b: 1, b: 2}", "f.yaml:1: 'b' is given twice (first in line 1)"),
        ("1.5: x", "f.yaml:1: a key must be text (put it in quotes)"),
        ("[a]: x", "f.yaml:1: a key must be text (put it in quotes)"),
        ("a: !!python/name:os.system x", "f.yaml:1: the tag !!python/name:os.system is not supported (leave it out)"),
        ("a: !set {x: 1}", "f.yaml:1: the tag !set is not supported (leave it out)"),
        ("a: !!int x", "f.yaml:1: 'x' is not a int"),
        ("a: &x [*x]", "f.yaml:1: an alias that contains itself"),
        ("a: [1\nb: 2", "f.yaml:2:2: not YAML: a list or section in brackets that goes on without a comma, or is not closed"),
        (
            "a:\n\tb: 1",
            "f.yaml:2:1: not YAML: a tab, where YAML takes spaces",
        ),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1: not YAML: a second document begins here, and there may be only one"),
        ("a: 1\nb: \x00", "f.yaml:2: not YAML: a character that text does not have (U+0000)"),
        ('a: "x\\ud800"', "f.yaml:1: a character that text does not have (U+D800)"),
        ('a: 1\n"x\\udfff": 2', "f.yaml:2: a character that text does not have (U+DFFF)"),
        ("[" * 5000, "f.yaml: nested too deeply"),
        ("a: 1\nb: " + "1" * 100_000, f"f.yaml:2: '{'1' * 76}... is too long for a number"),
        ("b: 0x" + "f" * 100_000, f"f.yaml:1: '0x{'f' * 74}... is too long for a number"),
    ],
)
def test_an_unusable_document_is_an_error_with_its_place(text: str, message: str) -> None:
    assert message_of(text) == message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "cannot be read: no such file or directory"),
        (lambda p: p.mkdir(), "cannot be read: is a directory"),
        (lambda p: p.write_bytes(b"a: \xff"), "not UTF-8 text (byte 3)"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, make: object, message: str) -> None:
    path = tmp_path / "maitred.yaml"
    make(path)  # type: ignore[operator]

    with pytest.raises(ConfigError) as caught:
        YamlDocument.read(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "maitred.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")

    assert YamlDocument.read(path).value == {"a": 1}
