"""The scheduler of TensorRT-LLM's second KV-cache manager, and the routing of requests to ranks, by hand-made cases."""

from __future__ import annotations

import pytest
from trtllm_conformance.attention_dp import RankRequest, RankState, route_to_ranks
from trtllm_conformance.interleaved import InterleavedScheduler

from maitred.batching import LlmRequest, LlmRequestState

GENERATING = LlmRequestState.GENERATION_IN_PROGRESS


class FullCache:
    """KV memory that has room for a step only once the pages of some request are given up for good."""

    has_secondary_tier = True

    def __init__(self) -> None:
        self._freed = False

    def is_active(self, request: LlmRequest) -> bool:
        return True

    def try_allocate(self, request: LlmRequest) -> bool:
        return self._freed

    def suspend(self, request: LlmRequest) -> None:
        """Its pages go to the other tier, and no room is made."""

    def free(self, request: LlmRequest) -> None:
        self._freed = True


def multimodal(number: int, state: LlmRequestState = GENERATING, computed: int = 10) -> LlmRequest:
    request = LlmRequest(number, 10, 10, state=state, is_multimodal=True)
    request.context_current_position = computed
    return request


@pytest.mark.parametrize(
    ("last", "victims"),
    [
        (LlmRequest(2, 10, 10, state=GENERATING), [2]),
        (multimodal(2), [1]),
        (multimodal(2, LlmRequestState.CONTEXT_INIT, computed=5), [2]),
    ],
)
def test_a_multimodal_request_does_not_compute_its_complete_prompt_again(last: LlmRequest, victims: list[int]) -> None:
    requests = [LlmRequest(0, 10, 10, state=GENERATING), LlmRequest(1, 10, 10, state=GENERATING), last]
    output = InterleavedScheduler(FullCache(), 8).schedule_request(requests, set())
    assert [request.request_id for request in output.generation_requests] == [0]
    assert [request.request_id for request in output.recompute_paused_requests] == victims


def test_where_all_others_are_multimodal_the_request_is_suspended_itself() -> None:
    requests = [LlmRequest(0, 10, 10, state=GENERATING), multimodal(1), multimodal(2)]
    output = InterleavedScheduler(FullCache(), 8).schedule_request(requests, set())
    assert output.generation_requests == output.recompute_paused_requests == []
    assert [request.request_id for request in output.paused_requests] == [2, 1, 0]


@pytest.mark.parametrize("relax", [True, False])
def test_a_request_whose_target_rank_is_full_falls_back_to_another(relax: bool) -> None:
    ranks = [RankState(0, 0), RankState(2, 20)]
    given = route_to_ranks(ranks, [RankRequest(1, 10, target_rank=1, relax=relax)], max_active_requests=2)
    assert [[request.request_id for request in rank] for rank in given.per_rank] == [[1], []]


def test_strict_requests_that_fall_back_compete_as_the_others_do() -> None:
    ranks = [RankState(1, 0), RankState(2, 0)]
    requests = [RankRequest(1, 10, target_rank=1, relax=False), RankRequest(2, 30), RankRequest(3, 5, target_rank=1)]
    given = route_to_ranks(ranks, requests, max_active_requests=2)
    assert [[request.request_id for request in rank] for rank in given.per_rank] == [[2], []]
