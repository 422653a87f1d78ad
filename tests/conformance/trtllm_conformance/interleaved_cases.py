"""The scheduler that allocates while it schedules, over an allocator that answers by a script."""

from __future__ import annotations

import re
from collections.abc import Iterator

from maitred.batching import LlmRequest, LlmRequestState

from .interleaved import InterleavedScheduler
from .requests import Case, ids

_STATES = {
    "generation": LlmRequestState.GENERATION_IN_PROGRESS,
    "context": LlmRequestState.CONTEXT_INIT,
    "encoder": LlmRequestState.ENCODER_INIT,
}


class ScriptedCache:
    """KV memory in which steps that generate find room as the script says, and prompts always do.

    A line of the script is the next answer (true, false), the answer from then on ("then False", "always False"), the answers
    to one request in turn ("request 0: False then True"), or what its success depends on ("request 1: True only after 3 was
    freed")."""

    def __init__(self, case: Case) -> None:
        self.has_secondary_tier = case["config"]["secondary_tier"]
        self.calls = 0
        self._inactive = {each["id"] for each in case["requests"] if each.get("suspended")}
        self._freed: set[int] = set()
        self._answers: list[bool] = []
        self._from_then_on = True
        self._by_request: dict[int, list[bool]] = {}
        self._needs_freed: dict[int, int] = {}
        for line in case["generation_alloc_script"] or ():
            self._read(line)

    def _read(self, line: bool | str) -> None:
        if isinstance(line, bool):
            self._answers.append(line)
            self._from_then_on = line
        elif found := re.fullmatch(r"(?:then|always) (True|False)", line):
            self._from_then_on = found[1] == "True"
        elif found := re.fullmatch(r"request (\d+): True only after (\d+) was freed", line):
            self._needs_freed[int(found[1])] = int(found[2])
        elif found := re.fullmatch(r"request (\d+): ((?:True|False)(?: then (?:True|False))*)", line):
            self._by_request[int(found[1])] = [word == "True" for word in found[2].split(" then ")]
        else:
            raise ValueError(f"no line of a script: {line!r}")

    def is_active(self, request: LlmRequest) -> bool:
        return request.request_id not in self._inactive

    def try_allocate(self, request: LlmRequest) -> bool:
        if not request.is_generation_in_progress_state:
            return True
        self.calls += 1
        request_id = request.request_id
        if request_id in self._needs_freed:
            return self._needs_freed[request_id] in self._freed
        if request_id in self._by_request:
            answers = self._by_request[request_id]
            return answers.pop(0) if len(answers) > 1 else answers[0]
        return self._answers.pop(0) if self._answers else self._from_then_on

    def suspend(self, request: LlmRequest) -> None:
        self._inactive.add(request.request_id)

    def free(self, request: LlmRequest) -> None:
        self._inactive.add(request.request_id)
        self._freed.add(request.request_id)


def run_case(case: Case) -> Iterator[str]:
    """Make one call."""
    config, cache, expected = case["config"], ScriptedCache(case), case["expected"]
    scheduler = InterleavedScheduler(
        cache,
        config["max_batch_size"],
        config["max_num_tokens"],
        enable_recompute_pause=config["enable_recompute_pause"],
    )
    output = scheduler.schedule_request([_request(each) for each in case["requests"]], set(config.get("inflight", ())))
    found = {
        "encoder": ids(output.encoder_requests),
        "context": ids(output.context_requests),
        "generation": ids(output.generation_requests),
        "paused": ids(output.paused_requests),
        "recompute_paused": ids(output.recompute_paused_requests),
        "paused_set": sorted(ids(output.paused_requests)),
        "alloc_calls": cache.calls,
    }
    for name, value in expected.items():
        wanted = sorted(value) if name == "paused_set" else value
        if found[name] != wanted:
            yield f"{name}: {wanted} expected, {found[name]} found"


def _request(described: Case) -> LlmRequest:
    state = _STATES[described["type"]]
    if described.get("finishing"):
        state = LlmRequestState.GENERATION_TO_COMPLETE
    request = LlmRequest(
        described["id"],
        described.get("context_remaining", 10),
        described.get("max_new_tokens", 10),
        state=state,
        num_draft_tokens=described.get("draft_tokens", 0),
        beam_width=described.get("beam_width", 1),
        encoder_output_len=described.get("encoder_output_len", 0),
        is_multimodal=described.get("multimodal", False),
    )
    if request.is_generation_in_progress_state:
        request.context_current_position, request.num_generated_tokens = request.prompt_len, 1
    return request
