"""What of a large body is read: the parts that the readers of usual bodies look for (`bodies.large_body`)."""

from __future__ import annotations

from io import BytesIO
from typing import Final

from maitred.core.errors import JSON_ERRORS
from maitred.core.request import PrefixKeys
from maitred.core.steps import Steps
from maitred.gateway.bodies.body_budget import BodyLease
from maitred.gateway.bodies.body_members import parts_of_changed
from maitred.gateway.bodies.content_coding import decode_body
from maitred.gateway.bodies.large_body import LargeBody, Turns, read_large_body
from maitred.gateway.bodies.program_fields import PROGRAM_MEMBER_NAMES
from maitred.gateway.bodies.prompt_text import PromptText
from maitred.gateway.bodies.request_fields import HINT_MEMBER_NAMES, MEMBER_NAMES, invalid_body
from maitred.gateway.bodies.request_work import MAX_SEQUENCES, PROMPT_NAMES
from maitred.gateway.intake.engine_priority import PRIORITY_NAME
from maitred.gateway.intake.passed_routes import is_form, search_form_field
from maitred.gateway.routes import Route
from maitred.wire.exchange import Exchange

_NAMES: Final = sorted(MEMBER_NAMES | HINT_MEMBER_NAMES | PROGRAM_MEMBER_NAMES | {PRIORITY_NAME})

_COPY_BYTES: Final = 1024 * 1024
"""What is copied in a step: memory that is touched for the first time costs a millisecond for a MiB."""


class LargeBodyReader:
    """Reads the large bodies of all requests."""

    def __init__(self) -> None:
        self._turns = Turns()

    async def decode(self, exchange: Exchange, body: bytes, coding: bytes, limit: int, lease: BodyLease) -> bytes:
        """Return a compressed body as `content_coding.decode_body` does. Raises what that raises, and ClientDisconnected."""
        return await self._turns.run(decode_body(body, coding, limit, lease), exchange)

    async def read(self, exchange: Exchange, body: bytes, route: Route | None) -> LargeBody:
        """Read a body in steps, and return what was found. Raises ApiError 400 for one that is no JSON object and should be
        one, and ClientDisconnected."""
        must_be_json = route is not None and route.is_json
        content_type = exchange.get_header(b"content-type") or b""
        steps = _read_form(body, content_type) if not must_be_json and is_form(content_type) else _read_json(body)
        try:
            return await self._turns.run(steps, exchange)
        except JSON_ERRORS as error:
            if must_be_json:
                raise invalid_body(error, body) from error
            return LargeBody({})

    async def prepare_prompt(self, exchange: Exchange, prefix: PrefixKeys, large: LargeBody | None) -> None:
        """Compute what a router is going to ask of the prompt of a body, which is `large` if it has been read in slices. Raises
        ClientDisconnected."""
        if isinstance(prefix, PromptText):
            await self._turns.run(prefix.prepare(keeps_parts=large is None), exchange)

    async def change(self, exchange: Exchange, body: bytes, large: LargeBody) -> bytes:
        """Return the body for the backend, with the changes that are noted in `large`. Raises ClientDisconnected."""
        is_changed = bool(large.cut_out or large.added)
        return await self._turns.run(_copy_changed(body, large), exchange) if is_changed else body


def _copy_changed(body: bytes, large: LargeBody) -> Steps[bytes]:
    copy = BytesIO()
    for part in parts_of_changed(body, large.cut_out, large.added, is_empty=large.is_empty):
        for begin in range(0, len(part), _COPY_BYTES):
            copy.write(part[begin : begin + _COPY_BYTES])
            yield
    return copy.getvalue()  # This copies nothing.


def _read_json(body: bytes) -> Steps[LargeBody]:
    return read_large_body(body, _NAMES, PROMPT_NAMES, MAX_SEQUENCES)


def _read_form(body: bytes, content_type: bytes) -> Steps[LargeBody]:
    model = yield from search_form_field(body, content_type, "model")
    return LargeBody.of_values({} if model is None else {"model": model})
