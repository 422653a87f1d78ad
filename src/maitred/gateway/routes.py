"""The paths of an engine that are open to clients, as vLLM (0.33) and SGLang serve them, and how much work each is.

    needs a slot       what makes an engine compute a prompt: it may have to wait
    needs none         what only uses the tokenizer or a template: it takes a millisecond, and clients count tokens when engines
                       are busiest. So with the two halves that vLLM takes apart, `render` (the prompt as token ids, which
                       `/inference/v1/generate` takes) and `derender` (the answer in words again)

What changes an engine, or tells how it is built, is not here: `/pause`, `/resume`, `/inference/v1/abort_requests`,
`/kv_event_sources`. Such a path is the operator's (`passed_routes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec


class Route(msgspec.Struct, frozen=True, gc=False):
    """A path that is forwarded to a backend, under POST."""

    path: str
    needs_slot: bool = True
    needs_model: bool = True
    """Whether a body must name a model. If not, a body without one means the only model that is served."""
    generates: bool = True
    """Whether the response is generated token by token."""
    reports_usage_on_demand: bool = False
    """Whether a stream tells its usage only if `stream_options.include_usage` asks for it."""
    is_json: bool = True
    """Whether the body must be a JSON object; if not, it may be a form (`passed_routes`)."""
    asks_each: bool = False
    """Whether a backend that answers 404 is followed by another one."""
    prompts_in: tuple[str, ...] = ()
    """The fields of the body that may be lists of prompts, of which the engine makes a sequence each (`request_work`)."""
    end_marks: tuple[bytes, ...] = ()
    """A whole stream has one of these in its last events; empty where that is not known."""
    has_output: bool = True
    """Whether the engine generates something, so that a request without a limit may take long; not where it reads only."""


_CHOICES_END: Final = (b"[DONE]", b'"finish_reason":"', b'"finish_reason": "')
_MESSAGE_END: Final = (b'"message_stop"', b'"stop_reason":"', b'"stop_reason": "')
_RESPONSE_END: Final = (b'"response.completed"', b'"response.incomplete"', b'"response.failed"', b"[DONE]")
_SCORED: Final = ("text_1", "text_2", "queries", "items", "documents", "data_1", "data_2")

ROUTES: Final[Mapping[str, Route]] = {
    route.path: route
    for route in (
        Route("/v1/chat/completions", reports_usage_on_demand=True, end_marks=_CHOICES_END),
        Route(
            "/v1/completions",
            reports_usage_on_demand=True,
            prompts_in=("prompt", "prompt_embeds"),
            end_marks=_CHOICES_END,
        ),
        Route("/v1/embeddings", generates=False, prompts_in=("input", "messages"), has_output=False),
        Route("/v2/embed", needs_model=False, generates=False, prompts_in=("texts", "images", "inputs"), has_output=False),
        Route("/v1/responses", end_marks=_RESPONSE_END),
        Route("/v1/responses/compact"),
        Route("/v1/messages", end_marks=_MESSAGE_END),
        Route("/v1/rerank", generates=False, prompts_in=("documents",), has_output=False),
        Route("/v1/classify", generates=False, prompts_in=("input",), has_output=False),
        Route("/v1/moderations", generates=False, needs_model=False, prompts_in=("input",), has_output=False),
        Route("/v1/chat/completions/batch", generates=False, prompts_in=("messages",)),
        Route("/v1/decisions", generates=False, prompts_in=("questions",), has_output=False),
        Route("/v1/systemone", needs_model=False, generates=False, prompts_in=("questions",), has_output=False),
        Route("/cohere/v2/chat"),
        Route("/inference/v1/generate", needs_model=False, reports_usage_on_demand=True, prompts_in=("token_ids",)),
        Route("/invocations", needs_model=False, reports_usage_on_demand=True, prompts_in=("prompt", "input", *_SCORED)),
        Route("/generate", needs_model=False, prompts_in=("prompt", "text", "input_ids", "input_embeds", "inputs")),
        Route("/rerank", needs_model=False, generates=False, prompts_in=("documents",), has_output=False),
        Route("/v2/rerank", needs_model=False, generates=False, prompts_in=("documents",), has_output=False),
        Route("/score", needs_model=False, generates=False, prompts_in=_SCORED, has_output=False),
        Route("/v1/score", needs_model=False, generates=False, prompts_in=_SCORED, has_output=False),
        Route("/generative_scoring", needs_model=False, generates=False, prompts_in=("items",), has_output=False),
        Route("/classify", needs_model=False, generates=False, prompts_in=("input", "text"), has_output=False),
        Route("/pooling", needs_model=False, generates=False, prompts_in=("input",), has_output=False),
        Route("/encode", needs_model=False, generates=False, prompts_in=("text", "input_ids"), has_output=False),
        Route("/v1/audio/speech", needs_model=False, generates=False),
        Route("/v1/audio/transcriptions", needs_model=False, generates=False, is_json=False),
        Route("/v1/audio/translations", needs_model=False, generates=False, is_json=False),
        Route("/v1/images/generations", needs_model=False, generates=False),
        Route("/v1/images/edits", needs_model=False, generates=False, is_json=False),
        Route("/v1/images/variations", needs_model=False, generates=False, is_json=False),
        Route("/v1/videos", needs_model=False, generates=False, is_json=False),
        Route("/v1/messages/count_tokens", needs_slot=False, generates=False),
        Route("/v1/responses/input_tokens", needs_slot=False, generates=False),
        Route("/v1/chat/completions/render", needs_slot=False, generates=False),
        Route("/v1/completions/render", needs_slot=False, generates=False),
        Route("/v1/messages/render", needs_slot=False, needs_model=False, generates=False),
        Route("/v1/responses/render", needs_slot=False, needs_model=False, generates=False),
        Route("/cohere/v2/chat/render", needs_slot=False, generates=False),
        Route("/v1/chat/completions/derender", needs_slot=False, needs_model=False, generates=False),
        Route("/v1/completions/derender", needs_slot=False, needs_model=False, generates=False),
        Route("/v1/tokenize", needs_slot=False, needs_model=False, generates=False),
        Route("/v1/detokenize", needs_slot=False, needs_model=False, generates=False),
        Route("/tokenize", needs_slot=False, needs_model=False, generates=False),
        Route("/detokenize", needs_slot=False, needs_model=False, generates=False),
    )
}
"""What clients may ask of an engine, as vLLM and SGLang serve it."""
