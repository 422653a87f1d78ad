"""Flags of `maitred simulate`: prefill and decode instances, under BLIS's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from maitred.cli.flags import NO_VALUE, flag

_SPLIT = "Prefill and decode instances: prompts are computed in some, answers in others"


@dataclass(frozen=True, kw_only=True)
class DisaggregationFlags:
    """Which instances do what, and the network between them."""

    prefill_instances: Annotated[
        int | None, flag(_SPLIT, "--prefill-instances", "The first so many instances compute prompts, ...", "N")
    ] = None
    decode_instances: Annotated[
        int | None, flag(_SPLIT, "--decode-instances", "... the others answers; together --num-instances.", "N")
    ] = None
    pd_decider: Annotated[
        str | None, flag(_SPLIT, "--pd-decider", "Which prompts: always (default), never, prefix-threshold.", "NAME")
    ] = None
    pd_prefix_threshold: Annotated[
        int | None, flag(_SPLIT, "--pd-prefix-threshold", "Those with more tokens that are not cached. Default 16.", "TOKENS")
    ] = None
    pd_transfer_bandwidth: Annotated[
        float | None, flag(_SPLIT, "--pd-transfer-bandwidth", "Of the network, in GB/s. Default 25.", "GB/S")
    ] = None
    pd_transfer_base_latency: Annotated[
        float | None, flag(_SPLIT, "--pd-transfer-base-latency", "Of each transfer, in ms. Default 0.05.", "MS")
    ] = None
    pd_transfer_contention: Annotated[
        bool | None, flag(_SPLIT, "--pd-transfer-contention", "Transfers share the bandwidth.", NO_VALUE)
    ] = None
    pd_kv_bytes_per_token: Annotated[
        float | None, flag(_SPLIT, "--pd-kv-bytes-per-token", "Default: as the model has it.", "BYTES")
    ] = None
    prefill_routing_scorers: Annotated[
        str | None,
        flag(_SPLIT, "--prefill-routing-scorers", "Choose the prefill instance by these.", "NAME:WEIGHT,..."),
    ] = None
    decode_routing_scorers: Annotated[
        str | None, flag(_SPLIT, "--decode-routing-scorers", "Choose the decode instance by these.", "NAME:WEIGHT,...")
    ] = None


KEYS: Final[Mapping[str, str]] = {
    name: f"cluster.disaggregation.{key}"
    for name, key in {
        "prefill_instances": "prefill_instances",
        "decode_instances": "decode_instances",
        "pd_decider": "decider",
        "pd_prefix_threshold": "prefix_threshold",
        "pd_transfer_bandwidth": "transfer_bandwidth_gb_s",
        "pd_transfer_base_latency": "transfer_base_ms",
        "pd_transfer_contention": "transfer_contention",
        "pd_kv_bytes_per_token": "kv_bytes_per_token",
        "prefill_routing_scorers": "prefill_scorers",
        "decode_routing_scorers": "decode_scorers",
    }.items()
}
"""The keys of the configuration that flags stand for."""
