"""Disaggregation: prompts are computed in prefill instances, and their answers in decode instances (P/D).

    arrival -> routing: a decode instance, then the decision whether to split, then a prefill instance
            -> prefill instance, until the step that completes the prompt ends: the first token
            -> the KV of the prompt goes over the network
            -> wait queue of the decode instance, which needs KV blocks for it and no prefill: the other tokens

The decode instance is chosen first, because the prefix that it has cached decides whether a prefill elsewhere pays. From then
on the request counts as in flight in both instances, until it leaves each of them.

The transfer begins when prefill has ended, and decode begins when the transfer has ended. (BLIS begins the transfer at the
start of the last prefill step, so each request gains a step.) Transferred KV that finds no free blocks waits outside of the
blocks, in the order of the wait queue. (BLIS drops the request.)

    transfer time = transfer_base_ms + KV bytes of the prompt, in whole blocks / bandwidth

    1,000 tokens of 131,072 bytes in blocks of 16 at 25 GB/s: 0.05 ms + 63 · 16 · 131,072 B / 25 B/ns = 5.335 ms
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import msgspec

from maitred.compat.instance_rules import instance_rules
from maitred.core.contracts import InstanceView, Router
from maitred.core.decisions import DecisionLog
from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.core.units import MILLISECOND, Micros
from maitred.instance import InstanceConfig
from maitred.instance.catalogue import find_deployment
from maitred.routing import RoutingConfig, open_router
from maitred.sim.config import ClusterConfig
from maitred.sim.event_queue import SimEventKind
from maitred.sim.fleet import SimulatedFleet
from maitred.sim.replica import Replica
from maitred.sim.request_state import DelayLine, RequestStage, RequestState


def check_disaggregation(cluster: ClusterConfig, instance: InstanceConfig) -> None:
    """Raise ConfigError for settings of prefill and decode instances that do not go together; none without such instances."""
    config = cluster.disaggregation
    if not config:
        return
    if config.prefill_instances + config.decode_instances != cluster.num_instances:
        what = f"{config.prefill_instances} prefill and {config.decode_instances} decode instances"
        hint = "together they are all there are"
        raise ConfigError(f"{what} are not num_instances {cluster.num_instances}", where="cluster", hint=hint)
    problem = instance_rules(instance).disaggregation_problem
    if problem:
        what = f"the flavour {instance.flavour} is not for prefill and decode instances"
        raise ConfigError(what, where="instance.flavour", hint=f"{problem}; leave out flavour")
    _bytes_per_token(cluster, instance)


class Disaggregation:
    """The prefill and the decode pool, and the network between them."""

    def __init__(
        self,
        cluster: ClusterConfig,
        instance: InstanceConfig,
        fleet: SimulatedFleet,
        router: Router,
        delay_line: DelayLine,
        seed: int,
        log: DecisionLog | None = None,
    ) -> None:
        """`router` chooses in pools without scorers of their own. Raises ConfigError for settings that do not go together."""
        check_disaggregation(cluster, instance)
        self._config = config = cluster.disaggregation
        self._fleet = fleet
        self._delay_line = delay_line
        self._block_size = instance.block_size_in_tokens
        self._bytes_per_token = _bytes_per_token(cluster, instance)
        self._num_transfers = 0
        """Transfers that are under way."""
        prefill, decode = fleet.views[: config.prefill_instances], fleet.views[config.prefill_instances :]
        self._prefill = _RolePool(prefill, _role_router(config.prefill_scorers, "prefill", seed, log) or router)
        self._decode = _RolePool(decode, _role_router(config.decode_scorers, "decode", seed, log) or router)

    def place(self, state: RequestState, now: Micros) -> Replica:
        """Return the instance to which a request goes first. If it is a prefill instance, also set its decode instance."""
        request = state.request
        decode = self._fleet.replicas[self._decode.choose(request, now)]
        if not self._needs_prefill_instance(request, decode):
            return decode
        prefill = self._fleet.replicas[self._prefill.choose(request, now)]
        state.decode_replica = decode
        # The pipeline counts the instance that is returned. The decode instance is counted here and now, or later requests
        # would still see it as free while this prompt is computed.
        decode.in_flight += 1
        return prefill

    def on_request_end(self, request: Request, replica: Replica, now: Micros) -> None:
        """Tell the router of the pool of `replica` that the request has left this instance."""
        pool = self._prefill if replica.index < self._config.prefill_instances else self._decode
        pool.router.on_request_end(request, replica.index, now)

    def start_transfer(self, state: RequestState, decode: Replica, seq: SequenceState, now: Micros) -> None:
        """Send the KV of a computed prompt (`seq`) to its decode instance."""
        prefill, request = state.replica, state.request
        assert prefill is not None
        prefill.in_flight -= 1
        self.on_request_end(request, prefill, now)
        state.replica, state.decode_replica, state.prefilled = decode, None, seq
        state.stage = RequestStage.ENTERING
        self._num_transfers += 1
        self._delay_line.delay_until(state, now + self._transfer_time(request), SimEventKind.TRANSFER)

    def finish_transfer(self, delay_id: int, now: Micros) -> None:
        """Put a request into the wait queue of its decode instance, where its KV has arrived."""
        # The network is busy until here even if the request has ended meanwhile.
        self._num_transfers -= 1
        state = self._delay_line.pop(delay_id)
        if state is None:
            return
        replica, job = state.replica, state.job
        assert replica is not None
        state.stage = RequestStage.IN_INSTANCE
        enqueue, tokens = replica.instance.enqueue, job.output_tokens
        if not enqueue(job.request, tokens, now, job.conversation_prefix, transferred=state.prefilled):
            self._fleet.schedule_now(replica, now)
        self._fleet.mark_dirty(replica)

    def _transfer_time(self, request: Request) -> Micros:
        config = self._config
        size = -(-request.prompt_tokens // self._block_size) * self._block_size * self._bytes_per_token
        # The transfer itself is already counted. Its share is fixed when it begins: exact sharing would move the ends of all
        # transfers under way whenever one begins or ends.
        bandwidth = config.transfer_bandwidth_gb_s / (self._num_transfers if config.transfer_contention else 1)
        # 1 GB/s is 1,000 bytes per µs.
        return max(1, ceil(config.transfer_base_ms * MILLISECOND + size / (bandwidth * 1000)))

    def _needs_prefill_instance(self, request: Request, decode: Replica) -> bool:
        """Return whether a prefill instance computes the prompt."""
        if self._config.decider != "prefix-threshold":
            return self._config.decider == "always"
        cached = self._fleet.views[decode.index].cached_blocks(request) * self._block_size
        return request.prompt_tokens - cached > self._config.prefix_threshold


class _RolePool(msgspec.Struct, gc=False):
    """The instances of one role, and the router that chooses among them."""

    views: Sequence[InstanceView]
    router: Router

    def choose(self, request: Request, now: Micros) -> int:
        return self.router.choose(request, self.views, now).instance


def _role_router(scorers: str, role: str, seed: int, log: DecisionLog | None) -> Router | None:
    """Return a router for one pool by its own scorers, or None if it has none."""
    if not scorers:
        return None
    return open_router(RoutingConfig(policy="weighted", scorers=scorers), f"{seed}/routing/{role}", log, name=role)


def _bytes_per_token(cluster: ClusterConfig, instance: InstanceConfig) -> float:
    """Return the size of the KV of one token, as configured or computed from the model."""
    configured = cluster.disaggregation.kv_bytes_per_token
    if configured is not None:
        return configured
    if not (instance.model or instance.model_config_folder):
        hint = "give kv_bytes_per_token, or the model that the instances run"
        raise ConfigError("the size of the KV of a token is not known", where="cluster.disaggregation", hint=hint)
    model = find_deployment(instance).model
    return model.num_layers * model.kv_width * model.bytes_per_element
