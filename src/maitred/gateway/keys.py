"""API keys as they are kept: of a key that clients show, only its SHA-256, in a file if one likes and in memory always."""

from __future__ import annotations

import hashlib
import re
from typing import Final

HASHED: Final = "sha256:"
"""Before the hash of a key, in hexadecimal."""
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")
_OF_NOTHING: Final = HASHED + hashlib.sha256(b"").hexdigest()
_SENDABLE: Final = re.compile(r"[!-~]+")


def hashed(key: str) -> str:
    """`key` as sha256:HEX, if it is not that already. Raises ValueError for what cannot be a key; it is not repeated there."""
    if key.startswith(HASHED):
        if not _DIGEST.fullmatch(key.removeprefix(HASHED)):
            raise ValueError("must have 64 hexadecimal digits after sha256:")
        if key.lower() == _OF_NOTHING:
            raise ValueError("is the hash of an empty text")  # what a shell makes of a variable that is not set
        return key.lower()
    if not sendable(key):
        raise ValueError("must be visible ASCII characters without spaces")
    return HASHED + hashlib.sha256(key.encode()).hexdigest()


def sendable(key: str) -> bool:
    """Whether it can stand in a header."""
    return bool(_SENDABLE.fullmatch(key))
