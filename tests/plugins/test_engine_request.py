"""What policies see of a request in vLLM."""

from __future__ import annotations

from typing import Any

import pytest
from fake_vllm import FakeRequest, block_key

from maitred.core.request import PriorityClass, Request
from maitred.plugins.vllm.engine_request import describe_request


def described(**fields: Any) -> Request:
    return describe_request(FakeRequest("cmpl-1", 100, 40, **fields), 7, 5_000_000, 16)


def test_a_request_without_hints() -> None:
    request = described()
    assert (request.id, request.client_id, request.arrival) == (7, "cmpl-1", 5_000_000)
    assert (request.prompt_tokens, request.max_output_tokens) == (100, 40)
    assert (request.tenant, request.program, request.routing_key, request.slo_class) == ("", "", "", "")
    assert (request.deadline, request.slo_target) == (None, None)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tenant": "acme"}, {"tenant": "acme"}),
        ({"tenant": 17}, {"tenant": "17"}),
        ({"tenant": ["a", "b"]}, {"tenant": ""}),
        ({"program": "p", "session_id": "s"}, {"program": "p"}),
        ({"session_id": "s", "parent_program": "q"}, {"program": "s", "parent_program": "q"}),
        ({"routing_key": "k"}, {"routing_key": "k"}),
        ({"cache_salt": "salt"}, {"cache_namespace": "salt"}),
        ({"deadline_secs": 2.5}, {"deadline": 7_500_000}),
        ({"deadline_secs": "2.5", "slo_target_secs": 1}, {"deadline": 7_500_000, "slo_target": 1_000_000}),
        ({"priority_class": "interactive"}, {"priority_class": PriorityClass.INTERACTIVE}),
        ({"priority_class": "bulk", "slo_class": "critical"}, {"priority_class": PriorityClass.BULK, "slo_class": "critical"}),
        ({"slo_class": "critical"}, {"priority_class": PriorityClass.INTERACTIVE}),
        ({"trace_headers": {"tracestate": "other=1,maitred=tenant:t;deadline_secs:2"}}, {"tenant": "t", "deadline": 7_000_000}),
        ({"trace_headers": {"tracestate": "maitred=tenant:proxy"}, "tenant": "body"}, {"tenant": "body"}),
    ],
)
def test_what_hints_say(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    request = described(**fields)
    assert {name: getattr(request, name) for name in expected} == expected


@pytest.mark.parametrize("value", ["soon", -1, 0, "nan", "inf", 1e300, [1], None])
def test_a_deadline_that_is_none_counts_as_not_given(value: Any) -> None:
    assert described(deadline_secs=value).deadline is None


@pytest.mark.parametrize(
    ("priority", "expected"), [(0, "default"), (-1, "interactive"), (-2, "system"), (-9, "system"), (1, "bulk"), (5, "bulk")]
)
def test_the_priority_of_vllm_says_the_class(priority: int, expected: str) -> None:
    """The gateway sends the class this way (`forward_priority: vllm`); the lower number is the more urgent in vLLM."""
    request = described(priority=priority)
    assert (request.priority_class.label, request.priority) == (expected, -priority)


def test_an_unknown_class_counts_as_not_given() -> None:
    assert described(priority_class="vip").priority_class is PriorityClass.DEFAULT


def test_the_adapter_is_the_routing_key() -> None:
    class Adapter:
        lora_name = "sql"

    assert described(lora_request=Adapter()).routing_key == "sql"
    assert described(lora_request=Adapter(), routing_key="own").routing_key == "own"


def test_the_prompt_is_known_by_its_blocks() -> None:
    """100 tokens are 6 full blocks of 16, and 3 of 32, of which the second hash counts. Blocks of the answer are left out."""
    prefix = described(blocks="abcdefgh").prefix
    assert prefix is not None
    assert prefix.block_keys(16) == [int.from_bytes(block_key("abcdef"[:n])) for n in range(1, 7)]
    assert prefix.block_keys(32) == [int.from_bytes(block_key(letters)) for letters in ("ab", "abcd", "abcdef")]


def test_a_request_that_must_not_read_the_cache_finds_nothing_there() -> None:
    assert described(blocks="ab", skip_reading_prefix_cache=True).prefix is None
    assert describe_request(FakeRequest("a", blocks="ab"), 0, 0, None).prefix is None
