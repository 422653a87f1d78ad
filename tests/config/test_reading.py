"""Reading a configuration: YAML as values with places, paths that lead to something other than a file, and what is in force if
a part is invalid.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from maitred import files
from maitred.admission import AdmissionConfig
from maitred.config import ConfigSources, load_or_fall_back
from maitred.core.errors import ConfigError
from maitred.core.yaml_document import YamlDocument
from maitred.files import InputFiles, open_input, open_output, read_file, read_input


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
        ('a: "x\\0"', "f.yaml:1: a character that text does not have (U+0000)"),
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


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PEER_SECS", 0.05)
    monkeypatch.setattr(files, "STREAM_SECS", 0.2)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def make_huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (os.mkfifo, "it is a pipe, where a file is needed"),
    "a directory": (Path.mkdir, "Is a directory"),
    "a socket": (make_socket, "it is a socket, where a file is needed"),
    "/dev/zero": (lambda path: path.symlink_to("/dev/zero"), "it is a device, where a file is needed"),
    "a loop of links": (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    "a huge file": (make_huge, "it has more than 64 MiB"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_read_whole_is_a_regular_one(tmp_path: Path, kind: str) -> None:
    make, problem = KINDS[kind]
    make(tmp_path / "x")
    with pytest.raises(OSError, match=problem):
        read_file(tmp_path / "x")


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("a pipe", "nothing writes to this pipe"),
        ("a directory", "is a directory"),
        ("a socket", "it is a socket"),
        ("/dev/zero", "it has more than 1 MiB"),
        ("a huge file", "it has more than 1 MiB"),
    ],
)
def test_a_configuration_that_is_no_file_is_one_error(tmp_path: Path, kind: str, problem: str) -> None:
    KINDS[kind][0](tmp_path / "x.yaml")
    with pytest.raises(ConfigError, match=rf"x\.yaml: cannot be read: {problem}"):
        ConfigSources(file=tmp_path / "x.yaml").load()


def test_a_device_without_content_is_an_empty_configuration() -> None:
    assert ConfigSources(file=Path("/dev/null")).load() == ConfigSources().load()


def test_a_stream_is_read_once_and_kept(tmp_path: Path) -> None:
    """As in `--config <(...)`: the sources are read several times before a gateway starts, and again by a reload."""
    end, feed = os.pipe()
    os.write(feed, b"gateway: {port: 9000}\n")
    os.close(feed)
    sources = ConfigSources(file=Path(f"/dev/fd/{end}"))
    assert not sources.problems()
    assert [sources.load().gateway.port for _ in range(2)] == [9000, 9000]
    os.close(end)
    assert sources.load().gateway.port == 9000


def test_a_stream_that_does_not_end_is_an_error(tmp_path: Path) -> None:
    end, feed = os.pipe()
    os.write(feed, b"gateway: {}\n")
    with pytest.raises(OSError, match=r"its end did not come within 0\.2 s"):
        read_input(Path(f"/dev/fd/{end}"))
    os.close(end)
    os.close(feed)


def test_a_file_that_has_become_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path, read = tmp_path / "x.yaml", InputFiles()
    path.write_text("a: 1")
    assert read.read(path) == b"a: 1"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="it is a pipe, where a file is needed"):
        read.read(path)
    path.unlink()
    path.write_text("a: 2")
    assert read.read(path) == b"a: 2"


def test_a_pipe_that_something_writes_is_an_input(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    feeder = threading.Thread(target=path.write_bytes, args=(b"x" * 100_000,))
    feeder.start()
    with open_input(path) as file:
        assert file.read() == b"x" * 100_000
    feeder.join()
    with pytest.raises(OSError, match="nothing writes to this pipe"):
        open_input(path)


def test_a_device_that_never_ends_is_no_input() -> None:
    with pytest.raises(OSError, match="it is a device, where a file is needed"):
        open_input(Path("/dev/zero"))
    with open_input(Path("/dev/null")) as file:
        assert file.read() == b""


def test_a_pipe_that_nothing_reads_is_no_output(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="nothing reads this pipe"):
        open_output(tmp_path / "pipe", os.O_WRONLY)
    make_socket(tmp_path / "socket")
    with pytest.raises(OSError, match="it is a socket"):
        open_output(tmp_path / "socket", os.O_WRONLY)


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

    for elsewhere in ("keys_file: keys.yaml", "keys_file: 5", "jwt: {jwks: keys.json, issuer: i, audience: a}"):
        with pytest.raises(ConfigError):
            load_or_fall_back(sources_of(f"gateway: {{{elsewhere}, prot: 1}}\n", flags=backends))

    loaded = load_or_fall_back(sources_of(locked, flags={**backends, "gateway.tenant_api_keys": {"acme": "k2"}}))
    assert loaded.config.gateway.tenant_api_keys.keys() == {"acme"}
    kept = load_or_fall_back(sources_of("gateway: {backends: [http://a:1], api_key: k}\n" + BAD_CLASS))
    assert kept.config.gateway.api_key is not None
