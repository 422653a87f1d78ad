"""JSON as Python's `json` writes it: NaN, Infinity and -Infinity stand for floats, which JSON itself does not have.

vLLM's result files have them for figures without a value, Hugging Face's config.json for limits that do not exist. Whoever uses
a number from such a file checks it; one that is not used does no harm.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec


def decode_python_json(data: str | bytes) -> Any:
    """Return the value in `data`. Raises one of `errors.JSON_ERRORS`."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        # Only what is no strict JSON takes the slow way, and what is none either has msgspec's error, which names the byte.
        with suppress(ValueError):
            return json.loads(data)
        raise
