"""`maitred` as users see it: exit codes, one line per mistake, and no traceback if the output has no reader.

Commands run in the process of the tests, except where the interpreter itself is under test: its descriptors, signals and
encodings.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from maitred import __version__, is_compiled
from maitred.cli.serve import ServeFlags, values_of

MAITRED = [sys.executable, "-m", "maitred"]
ENV = {k: v for k, v in os.environ.items() if not k.startswith("MAITRED_")}


def refused(maitred: Any, *arguments: str) -> str:
    """Return what is printed on stderr, without the prefix; assert that it is one line, and the exit code."""
    result = maitred(*arguments)
    assert (result.code, result.out) == (2, "")
    prefix, *rest = result.err.splitlines()
    assert not rest
    assert prefix.startswith("maitred: error: ")
    return str(prefix).removeprefix("maitred: error: ")


@pytest.mark.parametrize("compiled", [is_compiled(), True, False])
def test_the_version_says_which_modules_run(maitred: Any, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if compiled != is_compiled():
        monkeypatch.setattr("maitred.cli.app.is_compiled", lambda: compiled)
    assert maitred("--version").out == f"maitred {__version__} ({'compiled' if compiled else 'interpreted'})\n"


def test_help(maitred: Any) -> None:
    bare = maitred()
    assert bare.code == 0
    for command in ("serve", "engine", "simulate", "demo", "check"):
        assert command in bare.out
        assert maitred(command, "--help").code == 0


@pytest.mark.parametrize("arguments", [["--version"], ["check", "nowhere.yaml"], ["formats"], ["srve"]])
def test_a_command_in_this_process_gives_what_a_process_gives(maitred: Any, arguments: list[str]) -> None:
    result = maitred(*arguments)
    process = subprocess.run([*MAITRED, *arguments], capture_output=True, text=True, timeout=30, check=False, env=ENV)

    assert (result.code, result.out, result.err) == (process.returncode, process.stdout, process.stderr)


def test_the_flag_for_a_class_is_read_as_the_header_is() -> None:
    flags = ServeFlags(values={"admission.default_max_class": " Interactive"})
    assert values_of(flags)["admission.default_max_class"] == "interactive"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["srve"], "unknown command 'srve'"),
        (["serve", "--prot", "1"], "unknown flag --prot"),
        (["serve", "--port", "http"], "--port takes a whole number"),
        (["check"], "there is nothing to check (maitred check FILE, or --admission-config FILE, or both)"),
        (["check", "nowhere.yaml"], "nowhere.yaml: cannot be read: no such file or directory"),
        (["serve", "--config", "nowhere.yaml"], "nowhere.yaml: cannot be read: no such file or directory"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_and_exit_code_2(maitred: Any, arguments: list[str], message: str) -> None:
    assert message in refused(maitred, *arguments)


def checked(maitred: Any, *arguments: str) -> list[str]:
    """Return what `maitred check` prints of a valid configuration, without the columns."""
    result = maitred("check", *arguments)
    assert (result.code, result.err) == (0, "")
    return [" ".join(line.split()) for line in result.out.splitlines()]


def test_check_summarises_a_valid_file(maitred: Any, tmp_path: Path) -> None:
    path = tmp_path / "maitred.yaml"
    path.write_text(
        "gateway: {backends: [http://a:1, http://b:1], slots_per_backend: 10}\n"
        "admission: {mode: priority}\nrouting: {policy: round-robin}\n"
    )

    lines = checked(maitred, str(path))

    assert lines[0] == f"{path}: ok"
    assert "gateway 127.0.0.1:8080, 2 backends, 10 slots on each" in lines
    assert "admission priority, flavour maitred, of 20 slots" in lines
    assert "system 1 reserved, may hold up to 20, 64 may wait, 30 s at most, may preempt" in lines
    assert "interactive 5 reserved, may hold up to 19, 256 may wait, 30 s at most, may preempt" in lines
    assert "bulk 0 reserved, may hold up to 14, 1024 may wait, 300 s at most" in lines
    assert "routing round-robin" in lines


def test_check_summarises_admission_without_classes(maitred: Any, tmp_path: Path) -> None:
    path = tmp_path / "maitred.yaml"
    path.write_text("")
    assert "admission legacy: no limit, 100 may wait, 60 s at most" in checked(maitred, str(path))
    path.write_text("admission: {legacy: {max_concurrent_requests: 8, rate_limit_tokens_per_second: 2.5}}")
    assert "admission legacy: 8 in flight, 2.5 per second, 100 may wait, 60 s at most" in checked(maitred, str(path))
    path.write_text("admission: {mode: 'off'}")
    assert "admission off" in checked(maitred, str(path))


def test_check_of_an_admission_file_alone_and_with_another(maitred: Any, tmp_path: Path) -> None:
    main, admission = tmp_path / "maitred.yaml", tmp_path / "smg.yaml"
    main.write_text("gateway: {backends: [http://a:1], slots_per_backend: 40}\nadmission: {mode: priority}\n")
    admission.write_text("classes:\n  bulk:\n    queue_size: 7\n")

    lines = checked(maitred, str(main), "--admission-config", str(admission))
    assert "bulk 0 reserved, may hold up to 28, 7 may wait, 300 s at most" in lines
    admission.write_text("mode: priority\nclases: {}\n")
    message = refused(maitred, "check", "--priority-scheduler-config", str(admission))
    assert message == f"{admission}:2: unknown key 'admission.clases' (did you mean 'classes'?)"


def test_check_prints_which_class_may_hold_what(maitred: Any, tmp_path: Path) -> None:
    """SMG's file says no mode, and floors without shares: nothing else is reserved."""
    smg = tmp_path / "smg.yaml"
    smg.write_text("classes: {system: {reserved_floor: 2}, interactive: {reserved_floor: 3}}\n")

    lines = checked(maitred, "--admission-config", str(smg), "--capacity", "16")
    assert lines[lines.index("admission priority, flavour maitred, of 16 slots") :][1:6] == [
        "system 2 reserved, may hold up to 16, 64 may wait, 30 s at most, may preempt",
        "interactive 3 reserved, may hold up to 14, 256 may wait, 30 s at most, may preempt",
        "default 0 reserved, may hold up to 11, 512 may wait, 60 s at most",
        "bulk 0 reserved, may hold up to 11, 1024 may wait, 300 s at most",
        "11 for any class",
    ]
    tight = maitred("check", "--admission-config", str(smg), "--capacity", "4")
    assert (tight.code, tight.out) == (2, "")
    assert "sum of class reservations (5) exceeds capacity (4): maitred serve would use legacy admission" in tight.err


def test_a_floor_of_one_on_one_slot_keeps_the_classes(maitred: Any, tmp_path: Path) -> None:
    smg = tmp_path / "smg.yaml"
    smg.write_text("classes: {interactive: {reserved_floor: 1}}\n")

    found = maitred("check", "--admission-config", str(smg), "--capacity", "1")
    assert "legacy" not in found.err
    assert "interactive     0 reserved (of 1 wished), may hold up to 1" in found.out


def test_check_of_an_admission_file_as_the_main_file_names_the_flag_for_it(maitred: Any, tmp_path: Path) -> None:
    path = tmp_path / "smg.yaml"
    path.write_text("classes:\n  bulk:\n    queue_size: 7\nmoed: priority\n")
    message = f"{path}: this is the section admission alone (maitred check --admission-config {path})"
    assert refused(maitred, "check", str(path)) == message

    path.write_text("mode: priority\ngateway: {port: 80}\n")
    assert refused(maitred, "check", str(path)).startswith(f"{path}:1: unknown key 'mode'")


@pytest.mark.parametrize(
    ("keys", "summary"),
    [
        ("mode: flow-control", "flow control, flavour maitred, saturated by concurrency (at 100 in flight per instance)"),
        (
            "mode: flow-control, flow_control: {saturation_detector: utilization}",
            "flow control, flavour maitred, saturated by utilization (at 5 waiting or 80% of the KV blocks)",
        ),
    ],
)
def test_check_summarises_the_saturation_of_flow_control(maitred: Any, tmp_path: Path, keys: str, summary: str) -> None:
    path = tmp_path / "maitred.yaml"
    path.write_text(f"admission: {{{keys}, policy: token-bucket}}\n")

    lines = checked(maitred, str(path))

    assert f"admission {summary}" in lines
    assert "policy token-bucket" in lines
    assert not any("reserved" in line for line in lines)


def test_check_warns_of_what_is_probably_not_meant(maitred: Any, tmp_path: Path) -> None:
    path = tmp_path / "maitred.yaml"
    path.write_text(
        "gateway: {backends: [http://a:1], slots_per_backend: 8}\n"
        "admission:\n  mode: priority\n  default_max_class: system\n"
        "  on_overcommit: clamp\n  classes: {system: {reserved_floor: 6}, interactive: {reserved_floor: 6}}\n"
    )

    result = maitred("check", str(path))

    assert result.code == 0
    assert result.err.splitlines() == [
        "maitred: warning: default_max_class is system: every tenant can use the class meant for the control plane",
        "maitred: warning: sum of class reservations (12) exceeds capacity (8): they would be scaled down",
    ]
    assert [" ".join(line.split()) for line in result.out.splitlines()][3:5] == [
        "system 3 reserved (of 6 wished), may hold up to 8, 64 may wait, 30 s at most, may preempt",
        "interactive 4 reserved (of 6 wished), may hold up to 5, 256 may wait, 30 s at most, may preempt",
    ]


@pytest.mark.parametrize(
    ("more", "warning"),
    [
        ("on_overcommit: clamp\n", "sum of class reservations (20) exceeds capacity (16): they would be scaled down"),
        ("flavour: smg\n", "sum of class reservations (22) exceeds capacity (16): they would be scaled down"),
    ],
)
def test_check_reports_what_happens_to_reservations_that_do_not_fit(
    maitred: Any, tmp_path: Path, more: str, warning: str
) -> None:
    """SMG compares with the 1,024 slots that it assumes at start-up, and scales down later. Its `default` reserves 10 %."""
    path = tmp_path / "admission.yaml"
    whole = "reserved_floor: 10, queue_size: 1, queue_timeout_secs: 1, starvation_threshold_secs: 1, can_preempt: true"
    path.write_text(f"mode: priority\nclasses: {{system: {{{whole}}}, interactive: {{{whole}}}}}\n{more}")

    result = maitred("check", "--admission-config", str(path), env={"MAITRED_GATEWAY__SLOTS_PER_BACKEND": "16"})

    assert (result.code, result.err) == (0, f"maitred: warning: {warning}\n")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (
            "",
            "sum of class reservations (20) exceeds capacity (16): maitred serve would use legacy admission "
            "(reserve less, or set on_overcommit: clamp)",
        ),
        (
            "flavour: smg\nlegacy: {max_concurrent_requests: 15}\n",
            "sum of class reservations (22) exceeds capacity (15): maitred serve would use legacy admission "
            "(reserve less, or say max_concurrent_requests)",
        ),
    ],
)
def test_reservations_that_are_known_not_to_fit_are_refused(maitred: Any, tmp_path: Path, more: str, problem: str) -> None:
    """By `check`, and by a strict start. With two backends they would fit."""
    path = tmp_path / "admission.yaml"
    whole = "reserved_floor: 10, queue_size: 1, queue_timeout_secs: 1, starvation_threshold_secs: 1, can_preempt: true"
    path.write_text(f"mode: priority\nclasses: {{system: {{{whole}}}, interactive: {{{whole}}}}}\n{more}")
    env = {"MAITRED_GATEWAY__SLOTS_PER_BACKEND": "16", "MAITRED_GATEWAY__BACKENDS": "[http://a:1]"}
    expected = f"maitred: error: admission.classes: {problem}\n"

    checked = maitred("check", "--admission-config", str(path), env=env)
    assert (checked.code, checked.out, checked.err) == (2, "", expected)
    strict = maitred("serve", "--strict-config", "--port", "0", "--admission-config", str(path), env=env)
    assert (strict.code, strict.err) == (2, expected)
    if not more:
        env["MAITRED_GATEWAY__BACKENDS"] = "[http://a:1, http://b:1]"
        assert maitred("check", "--admission-config", str(path), env=env).code == 0


def test_check_lists_every_problem(maitred: Any, tmp_path: Path) -> None:
    path = tmp_path / "maitred.yaml"
    path.write_text("gateway:\n  prot: 1\n  host: 7\n")

    result = maitred("check", str(path), env={"MAITRED_ENGINE__PORT": "x"})

    assert (result.code, result.out) == (2, "")
    assert sorted(result.err.splitlines()) == [
        f"maitred: error: {path}:2: unknown key 'gateway.prot' (did you mean 'port'?)",
        f"maitred: error: {path}:3: gateway.host: expected text, found 7",
        "maitred: error: MAITRED_ENGINE__PORT: engine.port: expected a whole number, found 'x'",
    ]


def test_broken_yaml_is_one_line(maitred: Any, tmp_path: Path) -> None:
    path = tmp_path / "maitred.yaml"
    path.write_text("gateway: [1\nengine: 2")

    for command in (["check", str(path)], ["serve", "--config", str(path)]):
        assert refused(maitred, *command).startswith(f"{path}:2:7: not YAML: ")


def test_ctrl_c_is_130_without_a_traceback(tmp_path: Path) -> None:
    fifo = tmp_path / "never.yaml"
    os.mkfifo(fifo)
    running = subprocess.Popen([*MAITRED, "check", str(fifo)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=ENV)
    with running, fifo.open("wb", buffering=0):  # opens when the command has opened it too: it reads now
        running.send_signal(signal.SIGINT)
        _, stderr = running.communicate(timeout=30)

    assert (running.returncode, stderr) == (130, b"")


def test_a_reader_that_went_away_is_no_error() -> None:
    gone, output = os.pipe()
    os.close(gone)
    done = subprocess.run([*MAITRED, "--version"], stdout=output, stderr=subprocess.PIPE, timeout=30, check=False, env=ENV)
    os.close(output)

    assert done.stderr == b""
    assert done.returncode == 141  # as of a program that SIGPIPE ends; 1 is the answer of verify, tune and replay


def in_a_shell(line: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `line` in a shell, with the command in place of $MAITRED."""
    return subprocess.run(
        ["/bin/sh", "-c", line.replace("$MAITRED", shlex.join(MAITRED))],
        capture_output=True, timeout=30, check=False, env={**ENV, **env}, encoding="utf-8",
    )  # fmt: skip


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
@pytest.mark.parametrize("arguments", ["--version", "simulate --rate 9 --num-requests 9", "simulate --help"])
def test_output_that_cannot_be_written_is_one_line_and_exit_code_2(arguments: str) -> None:
    done = in_a_shell(f"$MAITRED {arguments} > /dev/full")

    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "maitred: error: cannot write the output: No space left on device"
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
def test_an_error_that_cannot_be_written_is_exit_code_2_all_the_same() -> None:
    assert in_a_shell("$MAITRED check nowhere.yaml 2> /dev/full").returncode == 2


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_output_that_was_closed_goes_nowhere(closed: str) -> None:
    done = in_a_shell(f"$MAITRED simulate --rate 9 --num-requests 9 {closed}")

    assert done.returncode == 0
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "env",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
)
def test_what_a_terminal_cannot_show_is_a_question_mark(env: dict[str, str]) -> None:
    done = in_a_shell("$MAITRED simulate --rate 9 --num-requests 9", **env)
    refused = in_a_shell("$MAITRED simulate --latency linear:5", **env)

    assert (done.returncode, refused.returncode) == (0, 2)
    assert "TTFT ? 2,000 ms" in done.stdout
    assert refused.stderr.startswith("maitred: error: --latency-model: ")
    assert refused.stderr.count("\n") == 1


def test_control_characters_in_names_do_not_reach_the_terminal(maitred: Any, tmp_path: Path) -> None:
    name = str(tmp_path / "a\x1b[31mb")

    assert refused(maitred, "check", name).startswith(f"{tmp_path}/a\\x1b[31mb: cannot be read")
    Path(name).touch()
    assert maitred("check", name).out.startswith(f"{tmp_path}/a\\x1b[31mb: ok\n")
    assert refused(maitred, "check", "") == "FILE: '' names no file (name the YAML file to check)"
