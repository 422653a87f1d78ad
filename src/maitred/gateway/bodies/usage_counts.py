"""What the usages of one answer say together, in the words of any of the APIs.

A stream may report its usage several times, and each time another part of it: Anthropic's says the prompt in its first event
and the answer in its last one, vLLM's may count on with each event, and what stands between a client and an engine may fill in
what it does not know. So each number is merged by itself (`merged`). The numbers of one answer only grow, so a 0, a null or a
missing member says nothing beside a number:

    message_start   input_tokens 20, cache_read_input_tokens 30        prompt 50
    message_delta   input_tokens 0, output_tokens 15                   prompt 50, output 15

No prompt has 0 tokens: a usage that says so, cached tokens included, does not know it. A total that has room for the output
alone knows it as little, and a total counts only beside a prompt that was told with it, or if none was told at all.

A number that no tokenizer can have counted (negative, no integer, larger than `MAX_REPORTED_TOKENS`) is ignored, and so is a
total of that kind together with its whole usage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from maitred.programs import Usage
from maitred.programs.token_estimator import MAX_REPORTED_TOKENS

Fields = Mapping[str, Any]
"""A usage as it was written, by the names of its members."""


class UsageCounts(NamedTuple):
    """The numbers of a usage, in tokens; None for what is not told."""

    prompt: int | None = None
    """Of the prompt, or of what of it was not cached (`apart`)."""
    cached: int | None = None
    """Those of `prompt` that were in the prefix cache."""
    read_apart: int | None = None
    """Those of the prompt that were in the prefix cache, where `prompt` does not count them (Anthropic)."""
    created_apart: int | None = None
    """Those that came into the prefix cache, likewise."""
    output: int | None = None
    total: int | None = None

    @property
    def whole_prompt(self) -> int | None:
        """All tokens of the prompt, or None if they are not told."""
        return ((self.prompt or 0) + (self.read_apart or 0) + (self.created_apart or 0)) or None

    def usage(self) -> Usage | None:
        """Return the usage, or None if neither prompt nor total are told. A prompt that is not told is 0."""
        prompt, output = self.whole_prompt, self.output or 0
        total = self.total if (self.total or 0) > output else None
        if total is None:
            if prompt is None:
                return None
            total = prompt + output
        return Usage(prompt or 0, total, self.cached if self.read_apart is None else self.read_apart)


NO_COUNTS: Final = UsageCounts()


def read_counts(fields: Fields, *, has_begun: bool = False) -> UsageCounts:
    """Return the numbers of one usage. `has_begun`: it is that of a message which has only begun, so the output that it counts,
    usually 1, is not the answer's."""
    if fields.get("total_tokens") is not None and _count(fields, "total_tokens") is None:
        return NO_COUNTS
    cached = _count(fields, "cached_tokens")
    for details in ("prompt_tokens_details", "input_tokens_details"):
        of_details = fields.get(details)
        if isinstance(of_details, dict):
            cached = _count(of_details, "cached_tokens")
    read_apart, created_apart = _count(fields, "cache_read_input_tokens"), _count(fields, "cache_creation_input_tokens")
    if fields.get("prompt_tokens") is not None:  # OpenAI's word; Anthropic's beside it are told for information.
        cached, read_apart, created_apart = read_apart if cached is None else cached, None, None
    return UsageCounts(
        prompt=_count(fields, "prompt_tokens", "input_tokens"),
        cached=cached,
        read_apart=read_apart,
        created_apart=created_apart,
        output=None if has_begun else _count(fields, "completion_tokens", "output_tokens"),
        total=_count(fields, "total_tokens"),
    )


def merged(before: UsageCounts, after: UsageCounts) -> UsageCounts:
    """Return the counts of two usages of one stream together, the later one last."""
    return UsageCounts(*map(_latest, before, after))._replace(total=_total_of_both(before, after))


def _total_of_both(before: UsageCounts, after: UsageCounts) -> int | None:
    if after.whole_prompt is None and not after.output:
        return before.total or after.total
    return after.total if after.whole_prompt or not before.whole_prompt else None


def _latest(before: int | None, after: int | None) -> int | None:
    return after if after or before is None else before


def _count(fields: Fields, *keys: str) -> int | None:
    """Return the first number of tokens under `keys`, or None if there is none, or none to be believed."""
    value = next((fields[key] for key in keys if fields.get(key) is not None), None)
    return value if type(value) is int and 0 <= value <= MAX_REPORTED_TOKENS else None
