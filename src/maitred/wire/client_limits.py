"""What a connection from a client may take of time and memory. `protocol` sees to it."""

from __future__ import annotations

MAX_HEAD_BYTES = 65_536
"""Largest head of a request (target and all headers), in bytes."""
HEAD_SECS = 20.0
"""Seconds from the first byte of a head to its end."""
BODY_SECS = 60.0
"""Seconds over which the rate of a request body is measured."""
KEEP_ALIVE_SECS = 75.0
"""Seconds for which a client's idle connection is kept: longer than clients keep theirs, so that the client closes it."""
MAX_PARKED_BYTES = 262_144
"""Bytes of further requests, or of a body that is not read, from which on a socket is not read."""
PARKED_SECS = 5.0
"""Seconds for which a socket is not read because too much is parked. Not for longer: whether the client has left is known for
certain only of a socket that is read."""
MIN_BYTES_PER_SEC = 240
"""Least rate at which a client must send a body, and take an answer that waits for it. (Kestrel's `MinResponseDataRate`.)"""
FIRST_WORDS_SECS = 1.0
"""Seconds that a new connection has for the first byte of its request when the server is about to end."""
LINGER_SECS = 1.0
"""Seconds for which a refused client may go on sending: closing at once could cost it the error response."""
