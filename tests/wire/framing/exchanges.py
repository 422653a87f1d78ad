"""Bytes into the framing core, whole and cut, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from maitred.wire.client_framing import ClientFraming
from maitred.wire.known_heads import KnownHeads
from maitred.wire.messages import END, Event, FramingError, RequestHead, ResponseHead
from maitred.wire.server_framing import ServerFraming

MAX_HEAD = 65_536
Receive = Callable[[bytes], list[Event]]


def cuts(data: bytes, most: int = 400) -> Iterator[list[bytes]]:
    """Return `data` whole, byte by byte, and cut once at each byte (of the first `most`)."""
    yield [data]
    yield [data[at : at + 1] for at in range(len(data))]
    for at in range(1, min(len(data), most)):
        yield [data[:at], data[at:]]


def plain(events: Iterable[Event]) -> list[object]:
    """Return events as plain values, with the pieces of a body joined; a fault as its status."""
    out: list[object] = []
    body = b""
    for event in events:
        if type(event) is bytes:
            body += event
            continue
        if body:
            out.append(body)
            body = b""
        if type(event) is RequestHead:
            out.append((event.method, event.target, event.headers))
        elif type(event) is ResponseHead:
            out.append((event.status, event.headers))
        elif isinstance(event, FramingError):
            out.append(event.status)
        else:
            assert event is END
            out.append("end")
    return [*out, body] if body else out


def serve(pieces: Iterable[bytes]) -> list[object]:
    """Receive requests on a server that answers each at once, and return the events of all. They are the same on a connection
    of a server that has received them before."""
    received, known_heads = list(pieces), KnownHeads[RequestHead]()
    events = _serve_once(received, known_heads)
    assert _serve_once(received, known_heads) == events
    return events


def _serve_once(pieces: Iterable[bytes], known_heads: KnownHeads[RequestHead]) -> list[object]:
    framing = ServerFraming(MAX_HEAD, known_heads)
    seen: list[Event] = []

    def answer(events: list[Event]) -> None:
        seen.extend(events)
        while END in events:
            framing.start_response(200, [(b"content-length", b"0")])
            framing.send_data(b"", False)
            if not framing.keep_alive:
                return
            events = framing.next_exchange()
            seen.extend(events)

    for piece in pieces:
        answer(framing.receive_data(piece))
    return plain(seen)


def ask(pieces: Iterable[bytes], method: str = "GET") -> tuple[list[object], bool]:
    """Receive one response on a client; return its events, and whether the connection can be used again. Both are the same on a
    connection of a client that has received it before."""
    received, known_heads = list(pieces), KnownHeads[ResponseHead]()
    answer = _ask_once(received, method, known_heads)
    assert _ask_once(received, method, known_heads) == answer
    return answer


def _ask_once(pieces: Iterable[bytes], method: str, known_heads: KnownHeads[ResponseHead]) -> tuple[list[object], bool]:
    framing = ClientFraming(MAX_HEAD, known_heads)
    framing.send_request(method, "/", "a", [], 0)
    seen: list[Event] = []
    for piece in pieces:
        seen += framing.receive_data(piece)
        if seen and isinstance(seen[-1], FramingError):
            break
    ended = END in seen
    return plain(seen[: seen.index(END) + 1] if ended else seen), ended and framing.peer.name == "DONE"
