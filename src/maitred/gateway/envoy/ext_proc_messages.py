"""What the picker says to Envoy, as bytes of `ProcessingResponse` (envoy.service.ext_proc.v3).

Most requests of one client change in the same way on their way to one backend. So the bytes of a pick are kept under what they
follow from (`PickedMessages`), and a pick costs a look-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.struct_pb2 import Struct

from maitred.gateway.envoy.ext_proc_schema import OVERWRITE, STREAMED, proto
from maitred.wire.messages import Headers

ENDPOINT: Final = "x-gateway-destination-endpoint"
"""The header and the member of the metadata that name the backend (endpoint picker protocol 1.0)."""
SERVED: Final = "x-gateway-destination-endpoint-served"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
NAMESPACE: Final = "envoy.lb"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
_MAX_CHUNK: Final = 62_000
"""Bytes of a body in one message, at most: what Envoy takes in one of its buffers (as in GAIE's pickers)."""
_MAX_KEPT: Final = 1_024


class Pick(NamedTuple):
    """What becomes of the head of a request on its way to a backend."""

    endpoints: str
    """Address and port of the backend, and behind commas those to be tried after it."""
    removed: tuple[str, ...]
    """The names of the headers that the backend does not get."""
    added: tuple[tuple[bytes, bytes], ...]
    """The headers that it gets instead, or beside."""


class PickedMessages:
    """Makes the answers that name a backend."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Pick, bool], bytes] = {}
        self._responses: dict[tuple[tuple[bytes, bytes], ...], bytes] = {}

    def in_headers(self, pick: Pick, own: Headers) -> bytes:
        """Return the pick as the answer to the headers of a request. `own` are headers that no other request has: they are
        added, and kept by nobody."""
        return self._find(pick, of_headers=True) + _with_headers(own, of_headers=True)

    def in_body(self, pick: Pick, own: Headers) -> bytes:
        """Return the pick as the answer to a buffered body, which stays as it is."""
        return self._find(pick, of_headers=False) + _with_headers(own, of_headers=False)

    def with_body(self, pick: Pick, own: Headers, body: bytes) -> bytes:
        """Return the pick as the answer to a buffered body, in place of which `body` is sent."""
        # Envoy keeps the Content-Length that came, and answers 500 where the new body has another one.
        own = [*own, (b"content-length", b"%d" % len(body))]
        return _picked(pick, of_headers=False, body=body) + _with_headers(own, of_headers=False)

    def response(self, told: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return the answer by which a response passes, with these headers beside or in place of its own."""
        headers = tuple(told)
        kept = self._responses.get(headers)
        if kept is None:
            if len(self._responses) >= _MAX_KEPT:
                self._responses.clear()
            common = proto.CommonResponse(header_mutation=proto.HeaderMutation(set_headers=_options(headers)))
            said = proto.ProcessingResponse(response_headers=proto.HeadersResponse(response=common))
            kept = self._responses[headers] = bytes(said.SerializeToString())
        return kept

    def _find(self, pick: Pick, *, of_headers: bool) -> bytes:
        kept = self._kept.get((pick, of_headers))
        if kept is None:
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            kept = self._kept[pick, of_headers] = _picked(pick, of_headers=of_headers)
        return kept


def _picked(pick: Pick, *, of_headers: bool, body: bytes | None = None) -> bytes:
    headers = [(ENDPOINT.encode(), pick.endpoints.encode()), *pick.added]
    common = proto.CommonResponse(
        header_mutation=proto.HeaderMutation(set_headers=_options(headers), remove_headers=pick.removed),
        body_mutation=None if body is None else proto.BodyMutation(body=body),
        clear_route_cache=True,
    )
    metadata = Struct()
    metadata.update({NAMESPACE: {ENDPOINT: pick.endpoints}})
    return _to_request(common, of_headers=of_headers, dynamic_metadata=metadata)


def _to_request(common: Any, *, of_headers: bool, **more: Any) -> bytes:
    if of_headers:
        said = proto.ProcessingResponse(request_headers=proto.HeadersResponse(response=common), **more)
    else:
        said = proto.ProcessingResponse(request_body=proto.BodyResponse(response=common), **more)
    return bytes(said.SerializeToString())


def _with_headers(headers: Headers, *, of_headers: bool) -> bytes:
    """Encode headers so that an encoded answer gets them if this is appended to it: two messages of protobuf in a row are one,
    in which repeated fields have the members of both."""
    if not headers:
        return b""
    added = proto.HeaderMutation(set_headers=_options(headers))
    return _to_request(proto.CommonResponse(header_mutation=added), of_headers=of_headers)


def _options(headers: Iterable[tuple[bytes, bytes]]) -> list[Any]:
    return [
        proto.HeaderValueOption(header=proto.HeaderValue(key=name.decode("latin-1"), raw_value=value), append_action=OVERWRITE)
        for name, value in headers
    ]


def streamed_body(body: bytes, *, is_response: bool = False, ends: bool = True) -> Sequence[bytes]:
    """Return the answers by which `body` is sent on in FULL_DUPLEX_STREAMED; `ends`: nothing follows, not even trailers."""
    chunks = [body[at : at + _MAX_CHUNK] for at in range(0, len(body), _MAX_CHUNK)] or [b""]
    return [_chunk(chunk, is_response=is_response, ends=ends and at == len(chunks) - 1) for at, chunk in enumerate(chunks)]


def _chunk(chunk: bytes, *, is_response: bool, ends: bool) -> bytes:
    streamed = proto.StreamedBodyResponse(body=chunk, end_of_stream=ends)
    response = proto.BodyResponse(response=proto.CommonResponse(body_mutation=proto.BodyMutation(streamed_response=streamed)))
    said = proto.ProcessingResponse(response_body=response) if is_response else proto.ProcessingResponse(request_body=response)
    return bytes(said.SerializeToString())


def immediate_response(status: int, headers: Headers, body: bytes) -> bytes:
    """Return the answer by which Envoy responds itself, and asks no backend, or gives up the one that it has asked."""
    response = proto.ImmediateResponse(
        status=proto.HttpStatus(code=status), headers=proto.HeaderMutation(set_headers=_options(headers)), body=body
    )
    return bytes(proto.ProcessingResponse(immediate_response=response).SerializeToString())


CONTINUE_REQUEST_HEADERS: Final = proto.ProcessingResponse(request_headers=proto.HeadersResponse()).SerializeToString()
CONTINUE_REQUEST_TRAILERS: Final = proto.ProcessingResponse(request_trailers=proto.TrailersResponse()).SerializeToString()
CONTINUE_RESPONSE_BODY: Final = proto.ProcessingResponse(response_body=proto.BodyResponse()).SerializeToString()
ASK_FOR_BODY: Final = proto.ProcessingResponse(
    mode_override=proto.ProcessingMode(response_body_mode=STREAMED)
).SerializeToString()
"""What asks for the body of a response, behind the answer to its headers: two messages of protobuf in a row are one."""
CONTINUE_RESPONSE_TRAILERS: Final = proto.ProcessingResponse(response_trailers=proto.TrailersResponse()).SerializeToString()
