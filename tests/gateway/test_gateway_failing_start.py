"""A gateway that cannot start leaves every folder as it was, whatever the reason and wherever in the start it comes up."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from maitred.core.errors import ConfigError
from maitred.files.line_file import LineFile
from maitred.files.undo import make_folders, rename, undo_on_failure, whole_or_nothing
from maitred.gateway import GatewayConfig
from maitred.gateway.app import Gateway
from maitred.gateway.observe.program_profiles import CSV_NAME
from maitred.programs import ProgramsConfig
from maitred.scheduler.programs.store import ProgramStore

HALF = b'{"version":1,"log":"maitred decisions"}\n{"at":1,'


def tree(folder: Path) -> Mapping[str, bytes | None]:
    """Return the content of every file below a folder, and None for each folder."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
    return {name: path.read_bytes() if path.is_file() else None for name, path in found.items()}


@pytest.fixture(params=["nothing", "files of the last run", "files that are to be moved aside"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file and a folder that stand in the way, and what an earlier gateway has left."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home" / "state"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "a-folder"))  # which matters for backends over TLS alone
    (tmp_path / "a-file").write_text("a")
    (tmp_path / "a-folder").mkdir()
    if request.param == "nothing":
        return tmp_path
    for name in ("state", "profiles"):
        (tmp_path / name).mkdir()
    if request.param == "files of the last run":
        with closing(ProgramStore(str(tmp_path / "state" / "programs.sqlite"))):
            (tmp_path / "state" / "programs.sqlite.lock").write_text("")
    else:
        (tmp_path / "state" / "programs.sqlite").write_bytes(b"no database" * 100)
        (tmp_path / "profiles" / CSV_NAME).write_text("other,columns\n1,2\n")
        (tmp_path / "profiles" / f"{CSV_NAME}.1").write_text("older\n")
    (tmp_path / "decisions.jsonl").write_bytes(HALF)
    return tmp_path


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that is in use."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


WRONG: dict[str, tuple[dict[str, str], str]] = {
    "profiles": ({"--profile-dir": "{}/a-file/x"}, "programs.profile_dir: cannot write"),
    "record": ({"--record": "{}/a-folder"}, "gateway.record: cannot write"),
    "decision log": ({"--decision-log": "{}/a-folder"}, "gateway.decision_log: cannot write"),
    "state": ({"--state": "{}/a-folder"}, "programs.state: cannot keep programs in"),
    "state below a file": ({"--state": "{}/a-file/x/y.sqlite"}, "programs.state: cannot keep programs in"),
    "certificate": ({"--tls-cert": "{}/a-file", "--tls-key": "{}/a-file"}, "gateway.tls_cert: "),
    "port": ({"--port": "TAKEN"}, "--port: port TAKEN is in use"),
    "the operator's port": ({"--admin-port": "TAKEN", "--api-key": "k"}, "--admin-port: port TAKEN is in use"),
    "host": ({"--host": "no.such.host.invalid"}, "--host: unknown host"),
    "authorities": ({"--backend": "https://127.0.0.1:9"}, "SSL_CERT_FILE: {}/a-folder cannot be read: "),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_start_that_fails_leaves_nothing_behind(maitred: Any, folder: Path, taken: int, wrong: str) -> None:
    before, (changed, problem) = tree(folder), WRONG[wrong]
    problem = problem.replace("{}", str(folder)).replace("TAKEN", str(taken))
    flags = {
        "--backend": "http://127.0.0.1:9",
        "--host": "127.0.0.1",
        "--port": "0",
        "--router": "tr",
        "--state": f"{folder}/state/programs.sqlite",
        "--profile-dir": f"{folder}/profiles",
        "--record": f"{folder}/record.csv",
        "--decision-log": f"{folder}/decisions.jsonl",
        **{name: value.replace("{}", str(folder)).replace("TAKEN", str(taken)) for name, value in changed.items()},
    }
    result = maitred("serve", "--profile", *(word for pair in flags.items() for word in pair))
    assert (result.code, problem in result.err) == (2, True), result.err
    assert tree(folder) == before


def test_the_file_that_keeps_programs_by_default_is_none_of_a_start_that_fails(maitred: Any, folder: Path, taken: int) -> None:
    before = tree(folder)
    flags = ("--backend", "http://127.0.0.1:9", "--host", "127.0.0.1", "--router", "tr", "--port", str(taken))
    assert maitred("serve", *flags).code == 2
    assert tree(folder) == before


def test_a_gateway_that_cannot_be_made_in_python_leaves_nothing_behind_and_holds_no_lock(folder: Path) -> None:
    before = tree(folder)
    state = str(folder / "state" / "programs.sqlite")
    programs = ProgramsConfig(mode="tr", state=state, profile=True, profile_dir=str(folder / "a-file" / "x"))
    with pytest.raises(ConfigError, match="profile_dir"):
        Gateway(GatewayConfig(backends=("http://127.0.0.1:9",), record=str(folder / "record.csv")), programs=programs)
    assert tree(folder) == before
    ProgramStore(state).close()


def test_a_start_that_succeeds_keeps_all(tmp_path: Path) -> None:
    with whole_or_nothing():
        with whole_or_nothing():
            make_folders(tmp_path / "a" / "b")
        LineFile(tmp_path / "a" / "b" / "log", where="here").close()
    make_folders(tmp_path / "c")
    assert tree(tmp_path).keys() == {"a", "a/b", "a/b/log", "c"}


def test_what_was_made_is_undone_in_reverse_and_only_what_was_made(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("kept")
    (tmp_path / "link").symlink_to("target")
    before, order = tree(tmp_path), list[str]()

    def start() -> None:
        undo_on_failure(lambda: order.append("first"))
        with whole_or_nothing():
            make_folders(tmp_path / "a" / "b")
            for name in ("a/b/file", "there", "link"):
                LineFile(tmp_path / name, where="here").close()
            rename(tmp_path / "there", tmp_path / "a" / "there")
        undo_on_failure(lambda: order.append("second"))
        assert (tmp_path / "target").exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        whole_or_nothing()(start)()
    assert order == ["second", "first"]
    assert tree(tmp_path) == before


def test_what_another_process_has_put_there_stays(tmp_path: Path) -> None:
    """Instead of the file that was made another one has its name."""
    path = tmp_path / "a" / "file"

    def start() -> None:
        make_folders(path.parent)
        LineFile(path, where="here").close()
        (tmp_path / "a" / "further").write_text("theirs")
        (tmp_path / "a" / "further").replace(path)
        raise ConfigError("no start")

    with pytest.raises(ConfigError):
        whole_or_nothing()(start)()
    assert path.read_text() == "theirs"
