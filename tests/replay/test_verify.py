"""`maitred verify`: what is equal, what differs, and what cannot be read."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred import simulate
from maitred.core.decisions import DecisionLog, SealedLines, encode_gap
from maitred.replay import ROOMS
from maitred.replay.reading import LogError
from maitred.replay.verify import Verified, Verifier
from maitred.sim import ClusterConfig

sys.path.append(str(Path(__file__).parents[1] / "admission"))
from log_writer import KINDS, World

WRITTEN = Path(__file__).parents[1] / "vectors" / "admission_log.jsonl.gz"


def verified(lines: Iterable[bytes]) -> Verified:
    return Verifier(ROOMS).run(("log", number, line) for number, line in enumerate(lines, 1))


def sealed(lines: Iterable[bytes]) -> list[bytes]:
    """Return lines with their seals, as a file has them."""
    written: list[bytes] = []
    seals = SealedLines(written.append)
    for line in lines:
        seals.write(line)
    seals.close()
    return written


def log_of(seed: int, num_inputs: int) -> list[bytes]:
    world = World(seed)
    for _ in range(num_inputs):
        world.step()
    return sealed(world.lines)


def simulated_log() -> list[bytes]:
    lines: list[bytes] = []
    simulate("sample:mixed", ClusterConfig(capacity=4), log=DecisionLog(lines.append))
    return lines


@pytest.fixture(scope="module")
def log() -> list[bytes]:
    return simulated_log()


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), num_inputs=st.integers(1, 120))
def test_any_inputs_are_equal_when_they_are_run_again(seed: int, num_inputs: int) -> None:
    found = verified(log_of(seed, num_inputs))
    assert found.is_equal, found.difference
    assert (found.num_unsealed, found.gaps) == (0, [])
    assert found.num_inputs > num_inputs / 2


@settings(max_examples=50)
@given(seed=st.integers(0, 50), where=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
def test_an_altered_byte_is_found(seed: int, where: float, change: int) -> None:
    lines = log_of(seed, 40)
    whole = bytearray(b"".join(lines))
    whole[int(where * len(whole))] ^= change
    try:
        found = verified(bytes(whole).splitlines(keepends=True))
    except LogError:  # It has a version that there is not.
        return
    # The last newline is the one byte without which a log may end: it was torn, which is said.
    assert not found.is_equal or found.torn


def test_a_lost_a_doubled_and_a_moved_line_are_found(log: list[bytes]) -> None:
    lines = sealed(log)
    for changed in (lines[:70] + lines[71:], lines[:70] + lines[69:], [*lines[:70], lines[71], lines[70], *lines[72:]]):
        assert not verified(changed).is_equal


def test_a_difference_is_shown_with_what_led_to_it(log: list[bytes]) -> None:
    at = next(n for n, line in enumerate(log) if b'"action":"queue"' in line)
    changed = [*log[:at], log[at].replace(b'"queue"', b'"admit"', 1), *log[at + 1 :]]
    difference = verified(changed).difference
    assert difference is not None
    assert (difference.place.line, difference.problem) == (at + 1, "the core decides otherwise")
    assert '"action":"queue"' in difference.expected
    assert '"action":"admit"' in difference.came
    assert difference.given == log[at - 1].decode().rstrip()
    assert difference.state["all models"]["slots"] == 4


def test_lines_behind_a_gap_are_passed_over_until_the_cores_are_made_anew(log: list[bytes]) -> None:
    cut = [*log[:100], encode_gap(7), *log[107:200]]
    found = verified(cut)
    assert found.is_equal
    assert [(gap.num_lines, gap.num_passed, gap.bridged_at) for gap in found.gaps] == [(7, 93, None)]
    found = verified([*cut, *log[1:]])  # as if the process had made its cores anew
    assert found.is_equal
    assert str(found.gaps[0].bridged_at) == "log, line 196"
    assert found.num_decisions > 1000


def test_a_log_without_its_beginning_is_not_verified(log: list[bytes]) -> None:
    found = verified(log[10:200])
    assert (found.num_inputs, found.gaps[0].num_lines, found.gaps[0].num_passed) == (0, None, 190)


def test_a_kill_may_tear_the_last_line_and_lose_what_belongs_to_it(log: list[bytes]) -> None:
    at = next(n for n, line in enumerate(log) if b'"action":"queue"' in line)
    torn = [*log[:at], log[at][:30]]
    found = verified(torn)
    assert found.is_equal
    assert [place.line for place in found.torn] == [at + 1]
    assert verified([*log[:at], *log]).num_processes == 2
    assert verified([*log[:at], *log]).is_equal
    assert not verified([*sealed(log[:at]), *log]).is_equal  # This process has ended in good order.


def test_logs_of_earlier_versions_are_verified() -> None:
    lines: list[bytes] = []
    for line in gzip.decompress(WRITTEN.read_bytes()).splitlines(keepends=True):
        if b'"input":"open"' in line and lines:
            break
        lines.append(line)
    found = verified(lines)
    assert found.is_equal
    assert found.num_unsealed == len(lines)
    assert len({World(seed).kind for seed in range(len(KINDS))}) == len(KINDS)


def test_the_command_reads_rotated_and_compressed_files(maitred: Callable[..., Any], tmp_path: Path, log: list[bytes]) -> None:
    lines = sealed(log)
    (tmp_path / "log.jsonl.10.gz").write_bytes(gzip.compress(b"".join(lines[:900])))
    (tmp_path / "log.jsonl.9").write_bytes(b"".join(lines[900:2000]))
    (tmp_path / "log.jsonl").write_bytes(b"".join(lines[2000:]))
    result = maitred("verify", *sorted(tmp_path.glob("log.jsonl*")))
    assert (result.code, "equal" in result.out) == (0, True)
    (tmp_path / "log.jsonl.9").write_bytes(b"".join(lines[900:1999]))
    result = maitred("verify", *sorted(tmp_path.glob("log.jsonl*")))
    assert (result.code, "DIFFERENT" in result.out) == (1, True)


def test_a_line_that_differs_is_no_longer_than_anybody_reads(
    maitred: Callable[..., Any], tmp_path: Path, log: list[bytes]
) -> None:
    (tmp_path / "log").write_bytes(b"".join(log[:40]) + b'{"room":"admission","x":"%s"}\n' % (b"y" * 100_000))
    result = maitred("verify", tmp_path / "log")
    assert (result.code, "y" * 900 in result.out, len(result.out) < 20_000) == (1, True, True)
    assert result.out.endswith("--json prints the lines whole\n")
    assert len(maitred("verify", "--json", tmp_path / "log").out) > 100_000


@pytest.mark.parametrize(
    "command", [["verify", "-"], ["why", "1", "--log", "-"], ["why", "--slow", "3", "-"], ["simulate", "--trace", "azure:-"]]
)
def test_what_is_piped_in_has_a_name(maitred: Callable[..., Any], command: list[str]) -> None:
    result = maitred(*command)
    assert (result.code, "no such file: what is piped in is /dev/stdin" in result.err) == (2, True)


@pytest.mark.parametrize("command", [["verify"], ["why", "1", "--log"], ["why", "--slow", "3"]])
@pytest.mark.parametrize("folder", ["", ".", "/"])
def test_a_folder_is_no_log(maitred: Callable[..., Any], command: list[str], folder: str) -> None:
    result = maitred(*command, folder)
    assert (result.code, "is a directory" in result.err) == (2, True)


@pytest.mark.parametrize("other", ["log.jsonl", "log.jsonl.1.gz", "link"])
def test_a_part_that_is_named_twice_is_refused(
    maitred: Callable[..., Any], tmp_path: Path, log: list[bytes], other: str
) -> None:
    """As a pattern of the shell does while the rotation compresses a part, or beside a link to it."""
    (part := tmp_path / "log.jsonl.1").write_bytes(b"".join(log[:900]))
    (newest := tmp_path / "log.jsonl").write_bytes(b"".join(log[900:]))
    (tmp_path / "log.jsonl.1.gz").write_bytes(gzip.compress(part.read_bytes()))
    (tmp_path / "link").symlink_to(part)
    result = maitred("verify", part, newest, tmp_path / other)
    assert (result.code, "are the same file, or part of a log (name one of them)" in result.err) == (2, True)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"hello\n", "it is no decision log"),
        (b'{"room":"log","version":99}\n', "the log has version 99"),
        (gzip.compress(b"x" * 999, mtime=0)[:-9], "it is not whole"),
        (b'{"at":1,"id":1,"input":"first_byte","room":"admission"}\n', "name the older files too"),
    ],
)
def test_what_is_no_log_is_one_line_and_exit_code_2(
    maitred: Callable[..., Any], tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "log").write_bytes(content)
    result = maitred("verify", tmp_path / "log")
    assert (result.code, said in result.err, result.err.count("\n")) == (2, True, 1)
