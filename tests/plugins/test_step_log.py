"""Step logs: what is written of an engine, and the same steps from the simulator.

The logs in tests/vectors/vllm_plugin_steps were recorded in vLLM 0.32.0, with the scheduler class and its record_steps.
"""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path
from random import Random

import msgspec
import pytest
from fake_vllm import FakeEngine, FakeRequest, FakeScheduler

from maitred.core.errors import ConfigError
from maitred.plugins.vllm.__main__ import compare_steps, main
from maitred.plugins.vllm.policy_queue import PolicyQueue
from maitred.plugins.vllm.step_log import FORMAT, EndLine, RequestLine, StepLine, StepLog, StepLogHeader, read_step_log
from maitred.plugins.vllm.step_replay import StepReplay
from maitred.queueing import SCHEDULERS

RECORDED = Path(__file__).parents[1] / "vectors" / "vllm_plugin_steps"
INSTANCE = {"max_num_seqs": 2, "max_num_batched_tokens": 64, "total_kv_blocks": 100, "enable_prefix_caching": True}


def recorded(name: str) -> Path:
    return RECORDED / f"{name}.jsonl.gz"


def written(lines: list[object], path: Path) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path


def made_log(scheduler: str = "fcfs") -> list[object]:
    """Return a log written by hand: budget 64, prompts of 40, 50 and 20 tokens that come at once, answers of 2, 3 and 1."""
    requests = [RequestLine(i, f"r{i}", i, tokens, 9, {}, ()) for i, tokens in enumerate((40, 50, 20))]
    steps = [[(0, 40), (1, 24)], [(0, 1), (1, 26)], [(1, 1), (2, 20)], [(1, 1)]]
    ends = [EndLine(i, 0, tokens, True, ()) for i, tokens in enumerate((2, 3, 1))]
    header = StepLogHeader(FORMAT, "0.32.0", 0, {**INSTANCE, "scheduler": scheduler})
    return [header, *requests, *(StepLine(i, 100 * (i + 1), step) for i, step in enumerate(steps)), *ends]


def test_the_log_of_an_engine() -> None:
    file, engine = io.StringIO(), FakeEngine()
    log = StepLog(file, StepLogHeader(FORMAT, "0.32.0", 0, INSTANCE), 0)
    queue = PolicyQueue(SCHEDULERS.create("fcfs").make_queue(None, Random(0)), engine, log)
    scheduler, aborted = FakeScheduler(queue, engine, max_num_seqs=1), FakeRequest("b", 9)
    queue.add_request(FakeRequest("a", 7, 2, tenant="t", priority=1))
    scheduler.step()
    scheduler.preempt()
    queue.add_request(aborted)
    scheduler.abort(aborted)
    scheduler.step()

    lines = [msgspec.json.decode(line) for line in file.getvalue().splitlines()]
    assert [line["type"] for line in lines] == ["header", "request", "step", "request", "end", "step", "end"]
    assert lines[1]["fields"] == {"priority": -1.0, "tenant": "t", "priority_class": "bulk"}
    assert (lines[2]["scheduled"], lines[2]["preempted"]) == ([[0, 7]], [])
    assert (lines[4]["id"], lines[4]["is_complete"]) == (1, False)
    assert lines[5]["scheduled"] == [[0, 8]]
    assert (lines[6]["id"], lines[6]["output_tokens"], lines[6]["is_complete"]) == (0, 2, True)
    instants = [line.get("at", line.get("arrival")) for line in lines[1:]]
    assert instants == sorted(instants)


@pytest.mark.parametrize("name", ["fcfs", "bounded", "vtc"])
def test_the_simulator_makes_the_steps_that_vllm_made(name: str) -> None:
    pairs = compare_steps(recorded(name))

    assert len(pairs) > 90
    assert [pair for pair in pairs if pair.vllm != pair.simulator] == []
    assert sum(pair.vllm.count("!") for pair in pairs) > 0, "a log without preemptions shows less"
    assert gzip.decompress(recorded(name).read_bytes()).count(b'"is_complete":false') == 3


def test_another_policy_makes_other_steps() -> None:
    """So the equality above is not one of what any policy would do."""
    header, lines = read_step_log(recorded("fcfs"))
    other = msgspec.structs.replace(header, instance={**header.instance, "scheduler": "sjf"})
    assert [*StepReplay(other, lines).steps()] != [line for line in lines if isinstance(line, StepLine)]


def test_a_deadline_is_for_the_policy_and_ends_no_request(tmp_path: Path) -> None:
    """The second request has the earlier deadline, goes first, and is answered long after its deadline, as in vLLM."""
    lines = [
        StepLogHeader(FORMAT, "0.32.0", 0, {**INSTANCE, "scheduler": "edf", "max_num_seqs": 1}),
        RequestLine(0, "late", 0, 30, 9, {"deadline": 10_000}, ()),
        RequestLine(1, "early", 1, 40, 9, {"deadline": 150}, ()),
        *(StepLine(i, 100 * (i + 1), step) for i, step in enumerate([[(1, 40)], [(1, 1)], [(1, 1)], [(0, 30)]])),
        EndLine(1, 400, 3, True, ()),
    ]
    assert [pair for pair in compare_steps(written(lines, tmp_path / "log")) if pair.vllm != pair.simulator] == []


def test_an_abort_comes_after_the_requests_that_came_before_it() -> None:
    """Tenant b always has a request waiting, so its counter stays at 0, and it goes before tenant d, which was served. If the
    abort of its first request came before the arrival of its second, it would have come back after a pause, and be raised."""
    keys = {**INSTANCE, "scheduler": "vtc(sjf)", "max_num_seqs": 1, "async_scheduling": True}
    lines = [
        *(RequestLine(i, f"r{i}", i, tokens, 9, {"tenant": tenant}, ()) for i, tenant, tokens in [(0, "d", 50), (1, "b", 40)]),
        RequestLine(2, "r2", 2, 60, 9, {"tenant": "d"}, ()),
        StepLine(0, 100, [(0, 50)]),
        RequestLine(3, "r3", 101, 30, 9, {"tenant": "b"}, ()),
        EndLine(1, 102, 0, False, ()),
        *(StepLine(i, 100 * (i + 1), ()) for i in range(1, 5)),
        *(EndLine(i, 900, 2, True, ()) for i in (0, 2, 3)),
    ]
    steps = StepReplay(StepLogHeader(FORMAT, "0.32.0", 0, keys), lines).steps()
    assert [list(step.scheduled) for step in steps] == [[(0, 50)], [(0, 1)], [(0, 1)], [(3, 30)], [(3, 1)]]


def test_an_answer_that_a_later_prompt_continues_is_found_in_the_cache(tmp_path: Path) -> None:
    """16 tokens of prompt and 17 of answer fill two blocks, since the last token has no KV. The next prompt has both."""
    lines = [
        StepLogHeader(FORMAT, "0.32.0", 0, INSTANCE),
        RequestLine(0, "first", 0, 16, 17, {}, (1,)),
        *(StepLine(i, 100 * (i + 1), [(0, 16 if i == 0 else 1)]) for i in range(17)),
        EndLine(0, 1800, 17, True, (1, 2)),
        RequestLine(1, "next", 1801, 48, 1, {}, (1, 2, 3)),
        StepLine(17, 1900, [(1, 16)]),
        EndLine(1, 2000, 1, True, (1, 2, 3)),
    ]
    assert [pair for pair in compare_steps(written(lines, tmp_path / "log")) if pair.vllm != pair.simulator] == []


def test_steps_are_printed_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(made_log(), tmp_path / "steps.jsonl")
    monkeypatch.setattr(sys, "argv", ["vllm", str(path)])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]

    assert ended.value.code == 0
    assert printed == [
        ["steps", "vLLM", "simulator"],
        ["0", "0:40", "1:24", "0:40", "1:24"],
        ["1", "0:1", "1:26", "0:1", "1:26"],
        ["2", "1:1", "2:20", "1:1", "2:20"],
        ["3", "1:1", "1:1"],
        ["4", "steps", "the", "same,", "0", "different"],
    ]


def test_a_difference_is_shown_and_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(made_log("sjf"), tmp_path / "steps.jsonl")
    monkeypatch.setattr(sys, "argv", ["vllm", str(path), "--all"])
    with pytest.raises(SystemExit) as ended:
        main()
    out = capsys.readouterr().out

    assert ended.value.code == 1
    assert "0      0:40 1:24  2:20 0:40  differs" in out
    assert "different" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        ("", "this is no step log"),
        ("hello\n", "this is no step log: JSON is malformed"),
        ('{"type": "step", "index": 0, "at": 0, "scheduled": []}\n', "this is no step log of this release"),
        ('{"type": "header", "format": 99, "vllm": "", "seed": 0, "instance": {}}\n', "this is no step log of this release"),
    ],
)
def test_a_file_that_is_no_step_log(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=message) as raised:
        read_step_log(path)
    assert str(raised.value).startswith(str(path))


def test_a_file_that_is_not_compressed_as_its_name_says(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl.gz"
    path.write_bytes(b"hello")
    with pytest.raises(ConfigError, match="cannot be read: Not a gzipped file"):
        read_step_log(path)


@pytest.mark.parametrize("instance", [{"max_num_seqs": 0}, {"unknown": 1}, {"scheduler": "no_such"}])
def test_an_engine_that_the_simulator_cannot_have(instance: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        StepReplay(StepLogHeader(FORMAT, "0.32.0", 0, instance), [])


def test_the_command_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["vllm"])
    with pytest.raises(SystemExit, match="usage: python -m"):
        main()
