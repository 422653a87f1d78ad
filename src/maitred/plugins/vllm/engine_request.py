"""What policies see of a request in vLLM: the fields of vLLM's request, and maitred's `Request` made of them.

    priority_class, priority     vLLM's `priority`, of which the lower goes first; here the larger is the more urgent. It also
                                 says the class, as a gateway forwards it (`forward_priority: vllm`): -1 is `interactive`, 1 is
                                 `bulk`
    program                      vLLM's `session_id` (header X-Session-ID)
    routing_key                  the name of the LoRA adapter
    max_output_tokens            vLLM's `max_tokens`
    prefix                       vLLM's own block hashes, in which the cache salt is mixed already

A client may say more, and may say the same otherwise, in `vllm_xargs` of the body: `{"tenant": "acme", "deadline_secs":
2.5}`. A proxy that must not touch bodies says it in the member `maitred` of the header `tracestate`, which vLLM keeps if it
traces: `tracestate: maitred=tenant:acme;deadline_secs:2.5`. The body wins.

A hint that cannot be used counts as not given. The client is far away by then, and an exception would end the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final, Protocol

import msgspec

from maitred.core.request import PriorityClass, Request, RequestId
from maitred.core.slo_classes import priority_class_of
from maitred.core.units import Micros, from_seconds

_TRACE_MEMBER: Final = "maitred="
_MAX_SECONDS: Final = 1e9


class VllmRequest(Protocol):
    """The part of vLLM's `Request` that is looked at."""

    request_id: str
    status: Any
    priority: int
    num_prompt_tokens: int
    max_tokens: int
    num_computed_tokens: int
    num_preemptions: int
    is_prefill_chunk: bool
    num_stale_output_tokens: int
    """Tokens of the steps that ran when the request was preempted, and of which the outcome is not known yet."""
    drop_stale_output: bool
    """Whether their outcome is thrown away."""
    sampling_params: Any
    """With `extra_args`, which are `vllm_xargs` of the body; None for a pooling model."""
    lora_request: Any
    trace_headers: Mapping[str, str] | None
    session_id: str | None
    cache_salt: str | None
    skip_reading_prefix_cache: bool
    block_hashes: Sequence[bytes]
    """Hashes of the full blocks so far, the answer included."""

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and answer so far."""
        ...

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the answer so far."""
        ...


class EngineBlockHashes(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys` of a prompt in vLLM: the hashes that vLLM made of its blocks."""

    request: Any
    """The `VllmRequest`."""
    hash_block_size: int
    """Tokens of a block of which vLLM makes a hash. A KV block may be a multiple of it."""

    def block_keys(self, block_size: int) -> Sequence[int]:
        return [int.from_bytes(block_hash) for block_hash in self.engine_hashes(block_size)]

    def engine_hashes(self, block_size: int) -> Sequence[bytes]:
        """Return the hashes of the full blocks of the prompt. The last of those in a KV block stands for all of it."""
        scale = block_size // self.hash_block_size
        full_blocks = self.request.num_prompt_tokens // block_size
        return list(self.request.block_hashes[scale - 1 : full_blocks * scale : scale])


def describe_request(
    request: VllmRequest, request_id: RequestId, arrival: Micros, hash_block_size: int | None = None
) -> Request:
    """Return `request`, which has arrived at `arrival`, as policies see it.

    `hash_block_size` is None without a prefix cache."""
    hints = _hints(request)
    slo_class = hints.text("slo_class")
    deadline, slo_target = hints.span("deadline_secs"), hints.span("slo_target_secs")
    reads_cache = hash_block_size is not None and not request.skip_reading_prefix_cache
    return Request(
        id=request_id,
        arrival=arrival,
        prompt_tokens=request.num_prompt_tokens,
        max_output_tokens=request.max_tokens,
        client_id=request.request_id,
        priority_class=_priority_class(hints.text("priority_class"), slo_class, request.priority),
        tenant=hints.text("tenant"),
        program=hints.text("program") or request.session_id or "",
        parent_program=hints.text("parent_program"),
        priority=float(-request.priority),
        routing_key=hints.text("routing_key") or str(getattr(request.lora_request, "lora_name", "")),
        cache_namespace=request.cache_salt or "",
        deadline=None if deadline is None else arrival + deadline,
        slo_class=slo_class,
        slo_target=slo_target,
        prefix=EngineBlockHashes(request, hash_block_size or 1) if reads_cache else None,
    )


class _Hints:
    """The hints of one request, by name."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def text(self, name: str) -> str:
        value = self._values.get(name)
        return str(value).strip() if isinstance(value, str | int | float) else ""

    def span(self, name: str) -> Micros | None:
        """Return a number of seconds in µs, or None if it is none, or not above 0."""
        try:
            seconds = float(self.text(name))
        except ValueError:
            return None
        return from_seconds(seconds) if isfinite(seconds) and 0 < seconds <= _MAX_SECONDS else None


def _hints(request: VllmRequest) -> _Hints:
    body = getattr(request.sampling_params, "extra_args", None)
    trace = _trace_hints(request.trace_headers) if request.trace_headers else {}
    return _Hints({**trace, **(body if isinstance(body, Mapping) else {})})


def _trace_hints(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the hints in the member `maitred` of `tracestate` (W3C Trace Context: members are separated by commas)."""
    members = [member.strip() for member in headers.get("tracestate", "").split(",")]
    own = next((member.removeprefix(_TRACE_MEMBER) for member in members if member.startswith(_TRACE_MEMBER)), "")
    return {name.strip(): value for name, colon, value in (pair.partition(":") for pair in own.split(";")) if colon}


def _priority_class(name: str, slo_class: str, engine_priority: int) -> PriorityClass:
    """Return the class that the client names, or else that of its SLO class, or else of its priority in vLLM."""
    named = PriorityClass.from_label(name)
    if named is not None:
        return named
    if slo_class:
        return priority_class_of(slo_class)
    return PriorityClass(max(PriorityClass.BULK, min(PriorityClass.DEFAULT - engine_priority, PriorityClass.SYSTEM)))
