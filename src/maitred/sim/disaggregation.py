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

The handover: where a prompt goes that others compute than those who answer it, and how its KV comes from there.

See `disaggregation` for who goes where. A request that is parted counts as in flight in both instances.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from random import Random

import msgspec

from maitred.core.contracts import InstanceView, Router
from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.core.units import MILLISECOND, Micros
from maitred.instance import InstanceConfig
from maitred.instance.catalogue import find_deployment
from maitred.routing import RoutingConfig
from maitred.sim.config import ClusterConfig
from maitred.sim.event_queue import SimEventKind
from maitred.sim.fleet import SimulatedFleet
from maitred.sim.replica import Replica
from maitred.sim.request_state import DelayLine, RequestStage, RequestState


class Placement(msgspec.Struct, frozen=True, gc=False):
    """Where a request goes."""

    decode: Replica
    prefill: Replica | None
    """None: `decode` computes its prompt, too."""


class PrefillDecodePools:
    """The two kinds of instances, the network between them, and who goes where."""

    def __init__(
        self, cluster: ClusterConfig, instance: InstanceConfig, fleet: SimulatedFleet, router: Router, seed: int
    ) -> None:
        """`router` chooses in both pools, unless they have scorers of their own. Raises ConfigError for what cannot be."""
        self._config = said = cluster.disaggregation
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
        self._prefill = _RolePool(prefill, _role_router(said.prefill_scorers, "prefill", seed) or router)
        self._decode = _RolePool(decode, _role_router(said.decode_scorers, "decode", seed) or router)

    def place(self, request: Request, now: Micros) -> Placement:
        decode = self._fleet.replicas[self._decode.choose(request, now)]
        if not self._uses_prefill_instance(request, decode):
            return Placement(decode, None)
        return Placement(decode, self._fleet.replicas[self._prefill.choose(request, now)])

    def on_request_end(self, request: Request, replica: Replica, now: Micros) -> None:
        """It has left that instance."""
        pool = self._prefill if replica.index < self._config.prefill_instances else self._decode
        pool.router.on_request_end(request, replica.index, now)

    def begin_transfer(self, request: Request) -> Micros:
        """The KV of its prompt is sent. Returns how long that takes."""
        self._active += 1
        said = self._config
        size = -(-request.prompt_tokens // self._block_size) * self._block_size * self._bytes_per_token
        share = said.transfer_bandwidth_gb_s / (self._active if said.transfer_contention else 1)
        return max(1, ceil(said.transfer_base_ms * MILLISECOND + size / (share * 1000)))

    def end_transfer(self) -> None:
        self._active -= 1

    def _uses_prefill_instance(self, request: Request, decode: Replica) -> bool:
        """Whether another instance computes its prompt."""
        if self._config.decider != "prefix-threshold":
            return self._config.decider == "always"
        cached = self._fleet.views[decode.index].cached_blocks(request) * self._block_size
        return request.prompt_tokens - cached > self._config.prefix_threshold


class _RolePool(msgspec.Struct, gc=False):
    views: Sequence[InstanceView]
    router: Router

    def choose(self, request: Request, now: Micros) -> int:
        return self.router.choose(request, self.views, now).instance


def _role_router(scorers: str, pool: str, seed: int) -> Router | None:
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
    model = find_deployment(instance).model
    return model.num_layers * model.kv_width * model.bytes_per_element


class KvTransfer:
    """See the module."""

    def __init__(self, pools: PrefillDecodePools, stations: DelayLine, fleet: SimulatedFleet) -> None:
        self._pools = pools
        self._delay_line = stations
        self._fleet = fleet

    def place(self, journey: RequestState, now: Micros) -> Replica:
        """Where it goes first."""
        way = self._pools.place(journey.job.request, now)
        if way.prefill is None:
            return way.decode
        journey.decode_replica = way.decode
        way.decode.in_flight += 1
        return way.prefill

    def on_request_end(self, request: Request, replica: Replica, now: Micros) -> None:
        """Whoever chose `replica` for it is told that it has left."""
        self._pools.on_request_end(request, replica, now)

    def start(self, journey: RequestState, then: Replica, seq: SequenceState, now: Micros) -> None:
        """Its prompt is computed: its KV goes where the rest is."""
        here, request = journey.replica, journey.job.request
        assert here is not None
        here.in_flight -= 1
        self.on_request_end(request, here, now)
        journey.replica, journey.decode_replica, journey.prefilled = then, None, seq
        journey.stage = RequestStage.ENTERING
        self._delay_line.delay_until(journey, now + self._pools.begin_transfer(request), SimEventKind.TRANSFER)

    def finish(self, station: int, now: Micros) -> None:
        """KV has come."""
        self._pools.end_transfer()
        journey = self._delay_line.pop(station)
        if journey is None:
            return
        replica, job = journey.replica, journey.job
        assert replica is not None
        journey.stage = RequestStage.IN_INSTANCE
        replica.instance.enqueue(job.request, job.output_tokens, now, job.conversation_prefix, transferred=journey.prefilled)
        self._fleet.dirty[replica] = None
