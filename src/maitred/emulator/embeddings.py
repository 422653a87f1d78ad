"""Embeddings that mean nothing but are always the same: a unit vector made from a hash of the text."""

from __future__ import annotations

import base64
import hashlib

import msgspec
import numpy as np

from maitred.emulator.schemas import EmbeddingBody, PromptItem, count_item, split_items

DIMENSIONS = 256

_encode = msgspec.json.Encoder().encode


def embedding_vector(item: PromptItem, dimensions: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Shape (dimensions,), of length 1. Equal texts have equal vectors."""
    text = item.encode("utf-8", "surrogatepass") if isinstance(item, str) else _encode(item)
    noise = np.frombuffer(hashlib.shake_128(text).digest(2 * dimensions), dtype="<i2") + 0.5
    unit: np.ndarray[tuple[int], np.dtype[np.float32]] = (noise / np.linalg.norm(noise)).astype(np.float32)
    return unit


def embedding_response(body: EmbeddingBody, model: str) -> tuple[dict[str, object], int]:
    """The JSON answer and its prompt tokens. Raises ApiError 400."""
    inputs = split_items(body.input, "input")
    dimensions = body.dimensions or DIMENSIONS
    prompt_tokens = sum(map(count_item, inputs))
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _encode_vector(embedding_vector(item, dimensions), body.encoding_format),
        }
        for index, item in enumerate(inputs)
    ]
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}, prompt_tokens


def _encode_vector(unit: np.ndarray[tuple[int], np.dtype[np.float32]], encoding: str | None) -> str | list[float]:
    if encoding == "base64":
        return base64.b64encode(unit.astype("<f4").tobytes()).decode()
    floats: list[float] = unit.tolist()
    return floats
