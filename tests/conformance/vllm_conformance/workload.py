"""The workloads that were recorded from vLLM: configuration, requests, and which token stands where.

A case is one JSON object `{name, workload, recorded}`. `workload` is what was asked; `recorded` is what vLLM did. Nothing here
needs maitred, so that the recorder runs in an environment that has only vLLM.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Workload = dict[str, Any]
DEFAULTS: dict[str, Any] = {
    "block_size": 16,
    "num_blocks": 1024,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 2048,
    "max_model_len": 8192,
    "policy": "fcfs",
    "enable_prefix_caching": False,
    "enable_chunked_prefill": True,
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "scheduler_reserve_full_isl": True,
    "watermark": 0.0,
    "prefill_schedule_interval": 1,
    "async_scheduling": False,
    "step_time_base": 1.0,
    "step_time_per_token": 0.0,
}
"""The keys of `workload.config` and their defaults. Times are in the units of the record's own clock."""
SHORTEST_FIRST = "shortest-prompt-first"
"""What the `scheduler` of a record says of a wait queue in the order of (preempted before others, prompt length, arrival)."""
_GROUP_STARTS = (1679489467, 3152218661, 4000068333)


class CasesError(Exception):
    """A file that cannot be read as recorded cases."""


def load_cases(path: Path) -> list[dict[str, Any]]:
    """Return the cases of a file, one or a list under `cases`, gzipped or not. Raises CasesError."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            found = json.load(file)
        cases: list[dict[str, Any]] = found.get("cases", [found])
        if not all(
            {"requests"} <= case["workload"].keys() and {"steps", "requests"} <= case["recorded"].keys() for case in cases
        ):
            raise CasesError(f"{path} holds no workload with its record")
    except OSError as error:
        raise CasesError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zlib.error) as error:
        raise CasesError(f"{path} holds no cases: {type(error).__name__}: {error}") from error
    return cases


def resolved_config(workload: Workload) -> dict[str, Any]:
    """Return the configuration of a workload with its defaults. Raises CasesError for a key that is unknown."""
    config = workload.get("config", {})
    if unknown := config.keys() - DEFAULTS.keys():
        raise CasesError(f"unknown keys in config: {', '.join(sorted(unknown))}")
    return {**DEFAULTS, **config}


def prompt_tokens(number: int, request: dict[str, Any]) -> list[int]:
    """Return the prompt of the request that is `number`th in its list, from 0."""
    shared = request.get("prefix_len") or 0
    start = _GROUP_STARTS[request["prefix_group"]] if shared else 0
    own = request["prompt_len"] - shared
    return [
        *(10 + (start + 31 * i) % 985 for i in range(shared)),
        *(10 + (6151 * number + 53 * i + 7) % 985 for i in range(own)),
    ]


def output_token(number: int, index: int) -> int:
    """Return the token that is `index`th of the answer to the request that is `number`th in its list, both from 0."""
    return 10 + (7919 * number + 104729 * index + 13) % 985


def is_shortest_first(case: dict[str, Any]) -> bool:
    """Return whether the wait queue of a record was replaced by one that puts short prompts first."""
    return str(case["recorded"].get("scheduler", "")).startswith(SHORTEST_FIRST)


def release_of(case: dict[str, Any]) -> str:
    """Return the minor release of vLLM that made a record, such as 0.32."""
    return ".".join(str(case["recorded"].get("vllm_version", "0.32")).split(".")[:2])


def due(requests: list[dict[str, Any]], key: str, now: float) -> Iterator[dict[str, Any]]:
    """Take the requests whose instant `key` has come from the front of `requests`, which is in the order of it."""
    while requests and requests[0][key] <= now:
        yield requests.pop(0)
