"""Disaggregation: prompts are computed in some instances, answers in others.

    arrival -> routing: a decode instance, then whether to part with the prompt, then a prefill instance
            -> prefill instance, until the step that completes the prompt ends: the first token
            -> its KV goes over the network
            -> wait queue of the decode instance, which needs KV blocks for it and no prefill: the other tokens

The decode instance is chosen first, since what it has cached decides whether the way over another instance is worth it. From
the choice on the request counts as in flight in both, until it leaves each of them.

Everything follows its cause: the transfer begins when prefill has ended, and decode when the transfer has. (BLIS begins the
transfer at the start of the last prefill step, so that each request gains a step.) KV that has come and finds no free blocks
waits outside of them, in the order of the wait queue; BLIS drops the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from random import Random

import msgspec

from maitred.catalogue import deployment
from maitred.contracts import InstanceView, Router
from maitred.errors import ConfigError
from maitred.instance import InstanceConfig
from maitred.request import Request
from maitred.routing import RoutingConfig
from maitred.sim.config import ClusterConfig
from maitred.sim.fleet import Fleet
from maitred.sim.replica import Replica
from maitred.units import MILLISECOND, Micros


class Way(msgspec.Struct, frozen=True, gc=False):
    """Where a request goes."""

    decode: Replica
    prefill: Replica | None
    """None: `decode` computes its prompt, too."""


class Pools:
    """The two kinds of instances, the network between them, and who goes where."""

    def __init__(self, cluster: ClusterConfig, instance: InstanceConfig, fleet: Fleet, router: Router, seed: int) -> None:
        """`router` chooses in both pools, unless they have scorers of their own. Raises ConfigError for what cannot be."""
        self._said = said = cluster.disaggregation
        if said.prefill_instances + said.decode_instances != cluster.num_instances:
            what = f"{said.prefill_instances} prefill and {said.decode_instances} decode instances"
            hint = "together they are all there are"
            raise ConfigError(f"{what} are not num_instances {cluster.num_instances}", where="cluster", hint=hint)
        if instance.flavour == "blis":
            hint = "its transfers would begin before prefill ends; take the flavour maitred"
            raise ConfigError("the flavour blis is not for prefill and decode instances", where="instance.flavour", hint=hint)
        self._fleet = fleet
        self._block_size = instance.block_size_in_tokens
        self._bytes_per_token = _bytes_per_token(cluster, instance)
        self._active = 0
        prefill, decode = fleet.views[: said.prefill_instances], fleet.views[said.prefill_instances :]
        self._prefill = _Pool(prefill, _own(said.prefill_scorers, "prefill", seed) or router)
        self._decode = _Pool(decode, _own(said.decode_scorers, "decode", seed) or router)

    def choose(self, request: Request, now: Micros) -> Way:
        decode = self._fleet.replicas[self._decode.choose(request, now)]
        if not self._parts(request, decode):
            return Way(decode, None)
        return Way(decode, self._fleet.replicas[self._prefill.choose(request, now)])

    def left(self, request: Request, replica: Replica, now: Micros) -> None:
        """It has left that instance."""
        pool = self._prefill if replica.index < self._said.prefill_instances else self._decode
        pool.router.left(request, replica.index, now)

    def begin_transfer(self, request: Request) -> Micros:
        """The KV of its prompt is sent. Returns how long that takes."""
        self._active += 1
        said = self._said
        size = -(-request.prompt_tokens // self._block_size) * self._block_size * self._bytes_per_token
        share = said.transfer_bandwidth_gb_s / (self._active if said.transfer_contention else 1)
        return max(1, ceil(said.transfer_base_ms * MILLISECOND + size / (share * 1000)))

    def end_transfer(self) -> None:
        self._active -= 1

    def _parts(self, request: Request, decode: Replica) -> bool:
        """Whether another instance computes its prompt."""
        if self._said.decider != "prefix-threshold":
            return self._said.decider == "always"
        cached = self._fleet.views[decode.index].cached_blocks(request) * self._block_size
        return request.prompt_tokens - cached > self._said.prefix_threshold


class _Pool(msgspec.Struct, gc=False):
    views: Sequence[InstanceView]
    router: Router

    def choose(self, request: Request, now: Micros) -> int:
        return self.router.choose(request, self.views, now).instance


def _own(scorers: str, pool: str, seed: int) -> Router | None:
    """A router of its own, if scorers are said for it."""
    if not scorers:
        return None
    return RoutingConfig(policy="weighted", scorers=scorers).router(Random(f"{seed}/routing/{pool}"))


def _bytes_per_token(cluster: ClusterConfig, instance: InstanceConfig) -> float:
    said = cluster.disaggregation.kv_bytes_per_token
    if said is not None:
        return said
    if not (instance.model or instance.model_config_folder):
        hint = "say kv_bytes_per_token, or which model the instances run"
        raise ConfigError("nobody says how large the KV of a token is", where="cluster.disaggregation", hint=hint)
    model = deployment(instance).model
    return model.num_layers * model.kv_width * model.bytes_per_element
