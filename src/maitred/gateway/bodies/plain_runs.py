"""Plain runs: the long stretches of text in a large body, which are left out before its fields are parsed.

A parser of JSON looks at each byte: 0.27 µs for a kilobyte, a millisecond for an image of 4 MB, in which all else has to wait.
Nearly all bytes of such a body are the inside of a string that no decision depends on. A run of bytes without a quote, a
backslash or a line end is found in an eighth of that time, and is replaced by one character before the body is parsed:

    {"model": "m", "prompt": "aaaaaaaa...aaaa"}    200,000 bytes
    {"model": "m", "prompt": "aaa...aaa\\x7f"}    the 8,197 bytes that are parsed

**Why this is exact.** The character stands for DEL, which JSON allows inside a string and nowhere else. So if the shorter body
is valid, the character is inside a string there; nothing in the run could have ended that string, or begun an escape, so the
run is inside of the same string, and all other values are what they were. Where a run was not inside a string (a long row of
numbers, say), or the body is not valid, the shorter one is not valid either, and the whole body is parsed. So it is if a value
that is read has the character in it.

**What is not seen** in a run is a control character other than a line end. JSON forbids it, and an engine will refuse it;
whether it does or not, the string ends for it where it ends here. (Nor is UTF-8 checked in a string that is not read.) Text
with an escape in every line has no long runs: looking for them costs a tenth of what parsing does.
Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from typing import Final

MARK: Final = "\x7f"
"""What stands for a run."""
_MARK: Final = MARK.encode()
MIN_RUN_BYTES: Final = 8_192
"""A run that is longer than twice this is always found."""
_BREAKERS: Final = (b'"', b"\\", b"\n")
"""What ends a run."""


def shorten_plain_runs(body: bytes) -> bytes:
    """Return `body` with `MARK` in place of each plain run that was found; `body` itself if there is none."""
    # Looked for at fixed places only, so that a body without runs costs a few look-ups and not one for each quote in it. Where
    # each breaker is next is kept until that is passed: one that is rare is looked for once, and not from every place anew.
    size, begin, kept = len(body), MIN_RUN_BYTES, 0
    nearest = [-1] * len(_BREAKERS)
    pieces: list[bytes] = []
    while begin + MIN_RUN_BYTES <= size:
        end = size
        for index, breaker in enumerate(_BREAKERS):
            found = nearest[index]
            if found < begin:
                found = body.find(breaker, begin)
                nearest[index] = found = size if found < 0 else found
            if found < end:
                end = found
                if end - begin < MIN_RUN_BYTES:
                    break
        if end - begin >= MIN_RUN_BYTES:
            pieces += (body[kept:begin], _MARK)
            begin = kept = end
        begin += MIN_RUN_BYTES
    return b"".join((*pieces, body[kept:])) if pieces else body
