"""The routes that are sent on to a backend, and what each of them costs.

What makes an engine generate takes a slot, and can be told to wait or be turned away. What only reads its tokenizer is
proxied without one: it is over in a millisecond, and clients count tokens just when everything is busy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec


class Route(msgspec.Struct, frozen=True, gc=False):
    """One path, under POST."""

    path: str
    needs_slot: bool = True
    needs_model: bool = True
    """Whether its body must name a model. Where not, none means the only one that is served."""
    generates: bool = True
    """Whether its answer is made token by token."""


ROUTES: Final[Mapping[str, Route]] = {
    route.path: route
    for route in (
        Route("/v1/chat/completions"),
        Route("/v1/completions"),
        Route("/v1/embeddings", generates=False),
        Route("/v1/responses"),
        Route("/v1/messages"),
        Route("/v1/rerank", generates=False),
        Route("/v1/classify", generates=False),
        Route("/generate", needs_model=False),
        Route("/rerank", needs_model=False, generates=False),
        Route("/v1/tokenize", needs_slot=False, needs_model=False, generates=False),
        Route("/v1/detokenize", needs_slot=False, needs_model=False, generates=False),
        Route("/tokenize", needs_slot=False, needs_model=False, generates=False),
        Route("/detokenize", needs_slot=False, needs_model=False, generates=False),
    )
}
