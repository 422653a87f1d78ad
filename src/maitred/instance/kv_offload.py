"""The configuration of KV offloading (`kv.host_tier`, `kv.radix_host_tier`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from maitred.core.errors import ConfigError

_GIB = 1 << 30
_MOST_GIB = 1_000_000
_MOST_GB_S = 1_000_000
_MOST_BYTES = 1 << 30


class KvOffloadConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """KV blocks in the memory of the host, behind the prefix cache of the GPU."""

    host_gib: float = 0.0
    """Memory of the host for KV blocks of one instance, in GiB; 0: none."""
    bandwidth_gb_s: float = 25.0
    """Bandwidth from there to the GPUs of one instance, in GB/s (10⁹ bytes)."""
    kv_bytes_per_token: float | None = None
    """KV per token, in bytes. Null: as the model has it."""
    write_policy: Literal["write_through", "write_through_selective", "write_back"] = "write_through"
    """When blocks are copied to the host, with `flavour: sglang` (its `--hicache-write-policy`): when they are computed, when a
    second request has used them, or when the GPU evicts them. The other flavours copy when the GPU evicts."""

    def __post_init__(self) -> None:
        if not 0 <= self.host_gib <= _MOST_GIB:
            raise ValueError(f"host_gib must be from 0 to {_MOST_GIB:,}, not {self.host_gib}")
        for name, most in (("bandwidth_gb_s", _MOST_GB_S), ("kv_bytes_per_token", _MOST_BYTES)):
            value = getattr(self, name)
            if value is not None and not 0 < value <= most:
                raise ValueError(f"{name} must be above 0 and at most {most:,}, not {value}")

    def __bool__(self) -> bool:
        return self.host_gib > 0

    def warnings(self, *, is_tree: bool) -> Iterator[str]:
        """Yield a warning for each key without effect. `is_tree`: whether the prefix cache is a radix tree."""
        if self.write_policy != "write_through" and not (self and is_tree):
            missing = "flavour sglang" if self else "host_gib (--kv-offload-gib)"
            yield f"kv_offload.write_policy {self.write_policy} has no effect without {missing}"

    def block_bytes(self, block_size: int) -> float:
        """Return the bytes of a block. Raises ConfigError where the size of the KV of a token is not known."""
        if self.kv_bytes_per_token is None:
            what, hint = "the size of the KV of a token is not known", "give kv_bytes_per_token, or a model"
            raise ConfigError(what, where="instance.kv_offload", hint=hint)
        return block_size * self.kv_bytes_per_token

    def num_blocks(self, block_size: int) -> int:
        """Return how many blocks the host holds. Raises ConfigError as `block_bytes`."""
        return int(self.host_gib * _GIB / self.block_bytes(block_size))

    def time_per_block(self, block_size: int) -> float:
        """Return the µs to load a block. Raises ConfigError as `block_bytes`."""
        return self.block_bytes(block_size) / (self.bandwidth_gb_s * 1000)  # 1 GB/s is 1,000 bytes per µs
