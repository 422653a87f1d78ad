"""How much work a request is: what its body says of prompts, answers and their length, and what that costs."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from world import Backend, BackendRequest, GatedAnswer, run, whole, world

from maitred.core.steps import run_at_once
from maitred.gateway.bodies.large_body import LARGE_BYTES
from maitred.gateway.bodies.request_fields import parse_body_fields
from maitred.gateway.bodies.request_work import MAX_SEQUENCES, UsualOutputs, count_sequences, output_limit
from maitred.gateway.intake.large_body_reader import _read_json
from maitred.gateway.routes import ROUTES
from maitred.testing.world.invariants import check_replay

TEXT = "x" * 20_000


def work(path: str, body: dict[str, Any] | bytes) -> tuple[int, int | None]:
    """Return the sequences of a request, and the limit of an answer."""
    route = ROUTES[path]
    encoded = body if isinstance(body, bytes) else msgspec.json.encode({"model": "m", **body})
    fields = parse_body_fields(encoded, route)
    return count_sequences(fields, route), output_limit(fields)


@pytest.mark.parametrize(
    ("path", "body", "sequences"),
    [
        ("/v1/chat/completions", {"messages": [{}, {}]}, 1),
        ("/v1/chat/completions", {"messages": [{}, {}], "n": 8}, 8),
        ("/v1/chat/completions", {"n": 0}, 1),
        ("/v1/chat/completions", {"n": 10**30}, MAX_SEQUENCES),
        ("/v1/chat/completions", {"n": [8]}, 1),
        ("/v1/chat/completions/batch", {"messages": [[{}, {}], [{}]], "n": 2}, 4),
        ("/v1/decisions", {"questions": [{"type": "predicate"}] * 3, "n": 2}, 3),
        ("/v1/systemone", {"questions": {"a": {"type": "x"}, "b": {"type": "y"}}}, 2),
        ("/v1/systemone", {"questions": {}}, 1),
        ("/v1/systemone", {"questions": {f"question {i}": {} for i in range(30_000)}}, MAX_SEQUENCES),
        ("/cohere/v2/chat", {"messages": [{}, {}]}, 1),
        ("/v2/embed", {"texts": ["a", "b"], "images": ["c"]}, 2),
        ("/generative_scoring", {"query": [1, 2], "items": [[1], [2], [3]]}, 3),
        ("/inference/v1/generate", {"token_ids": [1, 2, 3], "sampling_params": {"n": 4}}, 4),
        ("/invocations", {"messages": [{}, {}], "n": 2}, 2),
        ("/invocations", {"prompt": ["a", "b"], "n": 2}, 4),
        ("/v1/embeddings", {"messages": [{}, {}, {}]}, 1),
        ("/v1/embeddings", {"messages": [[{}, {}], [{}], [{}]]}, 3),
        ("/v1/completions", {"prompt": "a, [b], c"}, 1),
        ("/v1/completions", {"prompt": [1, 2, 3]}, 1),
        ("/v1/completions", {"prompt": []}, 1),
        ("/v1/completions", {"prompt": ["a", "b"]}, 2),
        ("/v1/completions", {"prompt": [[1, 2], [3], [4]]}, 3),
        ("/v1/completions", {"prompt": ["a", "b"], "n": 2, "best_of": 4}, 8),
        ("/v1/completions", {"prompt": [TEXT, '","', "b"], "stream": {}}, 3),
        ("/v1/completions", {"prompt": {"a": [1, 2]}}, 1),
        ("/v1/completions", {"prompt_embeds": ["AAAA", "AAAA", "AAAA"], "n": 2}, 6),
        ("/v1/completions", {"prompt": "a", "prompt_embeds": "AAAA"}, 1),
        ("/generate", {"input_embeds": [[0.5, 1.5], [2.5, 3.5], [4.5, 5.5]]}, 1),
        ("/generate", {"input_embeds": [[[0.5, 1.5], [2.5, 3.5]], [[4.5, 5.5]]]}, 2),
        ("/v1/embeddings", {"input": ["x"] * 2_048, "n": 2}, 2_048),
        ("/v1/embeddings", {"input": ["x"] * 3, "n": 2}, 3),
        ("/v1/embeddings", {"input": [TEXT] + ["x"] * 1_500}, 1_501),
        ("/v1/embeddings", {"input": ["x"] * 100_000}, MAX_SEQUENCES),
        ("/v1/rerank", {"query": "q", "documents": ["a", {"text": "b"}, "c"]}, 3),
        ("/v1/score", {"text_1": "q", "text_2": ["a", "b"]}, 2),
        ("/generate", {"text": ["a", "b"], "sampling_params": {"n": 3}}, 6),
        ("/generate", {"input_ids": [[1], [2]], "sampling_params": [{"n": 3}, {}]}, 6),
    ],
)
def test_the_sequences_that_a_request_makes(path: str, body: dict[str, Any], sequences: int) -> None:
    assert work(path, body)[0] == sequences


@pytest.mark.parametrize(
    ("path", "body", "limit"),
    [
        ("/v1/completions", {"max_tokens": 500, "max_completion_tokens": 1}, 500),
        ("/v1/chat/completions", {"max_tokens": 1, "max_completion_tokens": 500}, 500),
        ("/v1/chat/completions", {"max_tokens": 500.0}, 500),
        ("/v1/chat/completions", {"max_tokens": "500"}, 500),
        ("/v1/chat/completions", {"max_tokens": " 500.0 "}, 500),
        ("/v1/chat/completions", {"max_tokens": 0.5}, None),
        ("/v1/chat/completions", {"max_tokens": "inf"}, None),
        ("/v1/chat/completions", {"max_tokens": True, "max_output_tokens": 3}, 3),
        ("/v1/chat/completions", {"max_tokens": [5], "stream": "x"}, None),
        ("/v1/chat/completions", {"max_tokens": 1, "n_predict": 500}, 500),
        ("/generate", {"sampling_params": {"max_new_tokens": 7}, "max_tokens": 5}, 7),
        ("/generate", {"inputs": "x", "parameters": {"max_new_tokens": "7"}}, 7),
        ("/v1/chat/completions", {}, None),
    ],
)
def test_the_limit_of_an_answer_as_an_engine_may_read_it(path: str, body: dict[str, Any], limit: int | None) -> None:
    assert work(path, body)[1] == limit


@pytest.mark.parametrize("item", [b"1", b"[1]", b'""', b"{}", b" \n[ ]"])
def test_a_list_of_a_million_items_is_counted_without_an_object_for_each(item: bytes) -> None:
    body = b'{"model":"m","prompt":[' + item + (b"," + item) * 1_000_000 + b"]}"
    work("/v1/completions", b'{"model":"m","prompt":["a"]}')
    tracemalloc.start()
    sequences = work("/v1/completions", body)[0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sequences == (1 if item == b"1" else MAX_SEQUENCES)
    assert peak < len(body) + 4_000_000


@pytest.mark.parametrize("size", [10, 1_100_000])
@pytest.mark.parametrize(
    ("path", "name", "item", "sequences"),
    [
        ("/v1/chat/completions/batch", "messages", b'[{"role":"user","content":"x"}]', 3),
        ("/v1/embeddings", "messages", b'{"role":"user","content":"x"}', 1),
        ("/v1/completions", "prompt", b"1", 1),
        ("/generate", "input_embeds", b"[ [0.5]]", 3),
        ("/generate", "input_embeds", b"[%b[0.5]]" % (b" " * 100), 3),
        ("/generate", "input_embeds", b"[ 0.5]", 1),
    ],
)
def test_white_space_hides_no_prompts(path: str, name: str, item: bytes, sequences: int, size: int) -> None:
    body = b'{"model":"m","%b":[%b%b],"x":"%b"}' % (name.encode(), b" " * 200, b",".join([item] * 3), b"x" * size)
    route, large = ROUTES[path], run_at_once(_read_json(body)) if size > LARGE_BYTES else None
    assert count_sequences(parse_body_fields(body, route, large), route, large) == sequences
    padded = body.replace(b" " * 200, b" " * 1_200_000)
    large = run_at_once(_read_json(padded))
    assert count_sequences(parse_body_fields(padded, route, large), route, large) >= sequences


def test_answers_without_a_limit_are_expected_to_be_as_long_as_the_last_ones() -> None:
    usual = UsualOutputs()
    assert usual.mean("m") == 512
    for _ in range(200):
        usual.note("m", 4_000)
    assert usual.mean("m") == pytest.approx(4_000, rel=0.01)
    assert usual.mean("other") == 512


def test_a_request_takes_a_slot_for_each_sequence_and_the_log_replays(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(Backend(gate := GatedAnswer()), slots=8, decision_log=str(tmp_path / "log")) as w:
            first = await w.start_request({"model": "m", "n": 6})
            await w.wait_until(lambda: w.state.in_flight == 1)
            second = await w.start_request({"model": "m", "n": 4})
            await w.wait_until(lambda: w.state.waiting == 1)
            assert len(w.backends[0].received) == 1
            gate.open.set()
            assert [(await each.read_response())[0] for each in (first, second)] == [200, 200]

    run(scenario())
    log = (tmp_path / "log").read_bytes()
    assert list(check_replay(log.splitlines(keepends=True), may_lack_lines=False)) == []
    submitted = [line for line in log.splitlines() if b'"input":"submit"' in line]
    assert [b'"sequences":6' in submitted[0], b'"sequences":4' in submitted[1]] == [True, True]


def test_smg_takes_one_slot_for_any_request() -> None:
    async def scenario() -> None:
        admission = {"flavour": "smg", "classes": {}}
        async with world(Backend(gate := GatedAnswer()), slots=8, admission=admission) as w:
            requests = [await w.start_request({"model": "m", "n": 8}) for _ in range(2)]
            await w.wait_until(lambda: len(w.backends[0].received) == 2)
            gate.open.set()
            assert [(await each.read_response())[0] for each in requests] == [200, 200]

    run(scenario())


def test_the_usage_that_comes_settles_the_cost(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 30, "total_tokens": 39}

    async def scenario() -> None:
        async def respond(received: BackendRequest) -> None:
            await received.send(whole(msgspec.json.encode({"usage": usage})))

        backend = Backend(respond)
        admission = {"tenant_policies": {"auth:a": {"weight": 1}}}
        async with world(backend, slots=1, admission=admission, decision_log=str(tmp_path / "log")) as w:
            assert (await w.request(body={"model": "m", "max_tokens": 10_000}))[0] == 200

    run(scenario())
    log = (tmp_path / "log").read_bytes()
    assert log.count(b'"tokens":39') == 1
    assert list(check_replay(log.splitlines(keepends=True), may_lack_lines=False)) == []
