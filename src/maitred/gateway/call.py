"""One request on its way through the gateway: what it is, and what is sent on for it."""

from __future__ import annotations

from typing import Final

from maitred.gateway.budget import Lease
from maitred.gateway.routes import Route
from maitred.request import Request
from maitred.wire.asgi import Headers

MOST_OUTPUT_TOKENS: Final = 10_000_000
"""Of an answer, when its cost is guessed: more than any model gives, whatever its client allows."""


class Call:
    """Made by the reception, carried through admission and relay, and handed back to the reception when it has ended."""

    __slots__ = ("answered", "body", "headers", "lease", "path", "request", "request_id", "route")

    def __init__(
        self, route: Route, request: Request, path: str, headers: Headers, body: bytes, request_id: bytes, lease: Lease
    ) -> None:
        self.route = route
        self.request = request
        self.path = path
        """With its query string."""
        self.headers = headers
        """For the backend, complete."""
        self.body = body
        """For the backend."""
        self.request_id = request_id
        self.lease = lease
        """What its body holds of the budget."""
        self.answered = False
        """Whether the head of an answer has gone out."""

    @property
    def cost(self) -> int:
        """Tokens of its prompt and of its answer, as far as they can be known."""
        answer = min(max(0, self.request.max_output_tokens or 0), MOST_OUTPUT_TOKENS)
        return max(1, self.request.prompt_tokens + answer)
