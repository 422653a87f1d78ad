"""The step log: what vLLM was asked and what it made of it, step by step, as lines of JSON (`record_steps`).

    header     the engine: its release, the keys of `instance:` that describe it, the seed
    request    a request begins to wait: what policies know of it, and the hashes of its blocks
    step       the tokens that a step serves of each request, in the order of the batch, and which were preempted for it
    end        a request has left: complete or aborted, with so many tokens, and the hashes of the blocks of prompt and answer

The lines are in the order in which it happened: a request between steps 4 and 5 waited when step 5 was formed. Requests are
numbered by arrival, hashes shortened to 63 bits. The lines of a step are written together with it.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO, TypeAlias

import msgspec

from maitred.core.errors import ConfigError
from maitred.core.request import Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.files import open_input
from maitred.plugins.vllm.engine_request import VllmRequest
from maitred.plugins.vllm.policy_queue import StepListener

FORMAT: Final = 1
"""The number of this format."""
_HASH_BYTES: Final = 8


class StepLogHeader(msgspec.Struct, frozen=True, tag="header"):
    """The engine."""

    format: int
    vllm: str
    seed: int
    instance: Mapping[str, Any]
    """Keys of the section `instance:`."""


class RequestLine(msgspec.Struct, frozen=True, tag="request"):
    """A request that begins to wait."""

    id: RequestId
    client_id: str
    arrival: Micros
    prompt_tokens: int
    max_output_tokens: int | None
    fields: Mapping[str, Any]
    """Other fields of `Request`, where they are not the default."""
    block_hashes: Sequence[int]
    """Hashes of the full blocks of the prompt."""


class StepLine(msgspec.Struct, frozen=True, tag="step"):
    """A step that serves something."""

    index: int
    at: Micros
    scheduled: Sequence[tuple[RequestId, int]]
    """Tokens of each request, in the order of the batch."""
    preempted: Sequence[RequestId] = ()


class EndLine(msgspec.Struct, frozen=True, tag="end"):
    """A request that has left."""

    id: RequestId
    at: Micros
    output_tokens: int
    is_complete: bool
    block_hashes: Sequence[int]
    """Hashes of the full blocks of prompt and answer together."""


StepLogLine: TypeAlias = StepLogHeader | RequestLine | StepLine | EndLine

_LATER_FIELDS: Final = ("priority", "tenant", "program", "parent_program", "routing_key", "deadline", "slo_class", "slo_target")
_DEFAULTS: Final = {field.name: field.default for field in msgspec.structs.fields(Request)}


class StepLog(StepListener):
    """Writes a step log."""

    def __init__(self, file: TextIO, header: StepLogHeader, hashes_per_block: int) -> None:
        """`hashes_per_block` is how many hashes vLLM makes for a KV block; 0 without a prefix cache."""
        self._file = file
        self._hashes_per_block = hashes_per_block
        self._lines: list[StepLogLine] = [header]

    def on_request(self, request: Request, engine_request: VllmRequest) -> None:
        fields = {name: value for name in _LATER_FIELDS if (value := getattr(request, name)) != _DEFAULTS[name]}
        if request.priority_class is not _DEFAULTS["priority_class"]:
            fields["priority_class"] = request.priority_class.label
        blocks = self._shortened(engine_request) if request.prefix is not None else []
        line = RequestLine(
            request.id, request.client_id, request.arrival, request.prompt_tokens, request.max_output_tokens, fields, blocks
        )
        self._lines.append(line)

    def on_step(
        self, index: int, at: Micros, scheduled: Iterable[tuple[RequestId, int]], preempted: Iterable[RequestId]
    ) -> None:
        self._lines.append(StepLine(index, at, [*scheduled], [*preempted]))
        self._write()

    def on_end(self, seq: SequenceState, engine_request: VllmRequest, at: Micros, *, is_complete: bool) -> None:
        hashes = self._shortened(engine_request)
        self._lines.append(EndLine(seq.request.id, at, engine_request.num_output_tokens, is_complete, hashes))
        self._write()

    def close(self) -> None:
        """Write what is left, and close the file."""
        self._write()
        self._file.close()

    def _shortened(self, request: VllmRequest) -> list[int]:
        every = self._hashes_per_block
        hashes = request.block_hashes[every - 1 :: every] if every else ()
        return [int.from_bytes(block_hash[:_HASH_BYTES]) >> 1 for block_hash in hashes]

    def _write(self) -> None:
        self._file.write("".join(f"{msgspec.json.encode(line).decode()}\n" for line in self._lines))
        self._file.flush()
        self._lines.clear()


def read_step_log(path: Path) -> tuple[StepLogHeader, list[StepLogLine]]:
    """Return the header and the lines of a file, perhaps compressed (`.gz`). Raises ConfigError for one that is no step log."""
    try:
        with open_input(path) as raw:
            file = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            first = file.readline()
            decoder = msgspec.json.Decoder(StepLogLine)
            header = decoder.decode(first)
            if not isinstance(header, StepLogHeader) or header.format != FORMAT:
                raise ConfigError("this is no step log of this release", where=str(path), hint="record_steps writes one")
            return header, [decoder.decode(line) for line in file]
    except (OSError, EOFError) as error:
        raise ConfigError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=str(path)) from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"this is no step log: {error}", where=str(path), hint="record_steps writes one") from error
