"""Scenario: what takes part in a simulation, and which faults there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from maitred.admission import AdmissionConfig, ClassConfig, ClassesConfig, TenantPolicy
from maitred.gateway.admin.reload import GatewaySettings
from maitred.gateway.config import GatewayConfig, RetryConfig
from maitred.programs import ProgramsConfig
from maitred.routing import RoutingConfig
from maitred.testing.world.behaviours import ClientPlan
from maitred.testing.world.streams import LinkConfig
from maitred.wire.errors import UpstreamLimits

GATEWAY: Final = "10.0.0.2"
"""The address of the gateway."""
PORT: Final = 8080
ADMIN_PORT: Final = 9090


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario."""

    seed: int
    clients: tuple[ClientPlan, ...]
    num_engines: int = 2
    engine_limits: tuple[int, ...] = (8, 8)
    """Sequences that each engine runs at once."""
    step_ms: float = 8.0
    """Milliseconds that the step of an engine takes, beside its tokens. The slower an engine, the longer a request that has a
    slot has no first byte, and may be a victim."""
    hides_slots: bool = False
    """Whether no engine says its limit."""
    slots_per_backend: int | None = None
    retries_per_sec: float = 10.0
    """The floor of the budget for retries."""
    retry_share: float = 0.2
    """Its share of the requests."""
    mode: str = "priority"
    reserved_floor: int | None = None
    """Slots that are reserved for interactive requests, instead of a share."""
    tenant_slots: int | None = None
    """Requests that the tenant `acme` may have in flight; None: any number."""
    tenant_class: str | None = None
    """The highest class of the tenant `beta`; None: any."""
    queue_secs: float | None = None
    """Longest wait of default and bulk requests; None: what the flavour has."""
    starve_secs: float | None = None
    """Wait after which default and bulk requests may be promoted; None: what the flavour has."""
    admission: dict[str, Any] = {}
    """Further keys of the section `admission`, as a file has them."""
    policy: str = "least-loaded"
    has_programs: bool = False
    program_tokens: int | None = None
    """Tokens of KV memory of each engine that programs share; None: what engines say."""
    program_wait_secs: float = 1_800.0
    """Seconds that a program may wait for memory. A swarm has fewer: its clients lose patience after 900."""
    patience_secs: float = 10.0
    """Seconds after which memory is kept for it."""
    displace_secs: float = 300.0
    """Seconds after which it gets that of programs whose tools work."""
    keepalive_secs: float = 0.0
    poll_secs: float = 5.0
    """Seconds between two polls of an engine."""
    faults: tuple[str, ...] = ()
    """Kinds of faults that occur."""
    fault_secs: float = 60.0
    """Seconds for which faults occur."""
    fault_pace: float = 1.0
    """How much more often they occur than `FAULTS` says."""
    link: LinkConfig = LinkConfig()

    def settings(self, backends: Sequence[str], decision_log: str) -> GatewaySettings:
        """Return the configuration of the gateway."""
        gateway = GatewayConfig(
            host=GATEWAY,
            port=PORT,
            admin_port=ADMIN_PORT,
            admin_auth="none",
            backends=tuple(backends),
            slots_per_backend=self.slots_per_backend,
            trust_tenant_header=True,
            health_interval_secs=self.poll_secs,
            sse_keepalive_secs=self.keepalive_secs,
            decision_log=decision_log,
            access_log=True,
            settle_secs=3.0,
            upstream=UpstreamLimits(head_secs=60.0, idle_secs=30.0),
            retry=RetryConfig(budget_floor_per_sec=self.retries_per_sec, budget_share=self.retry_share),
        )
        rules = ClassConfig(queue_timeout_secs=self.queue_secs, starvation_threshold_secs=self.starve_secs)
        classes = ClassesConfig(interactive=ClassConfig(reserved_floor=self.reserved_floor), default=rules, bulk=rules)
        tenants = {
            "header:acme": TenantPolicy(max_in_flight=self.tenant_slots),
            "header:beta": TenantPolicy(max_class=self.tenant_class),  # type: ignore[arg-type]
        }
        section = {"mode": self.mode, "classes": classes, "default_max_class": "system", "tenant_policies": tenants}
        admission = msgspec.convert({**msgspec.to_builtins(section), **self.admission}, AdmissionConfig)
        return GatewaySettings(
            gateway=gateway,
            admission=admission,
            routing=RoutingConfig(policy=self.policy),
            programs=ProgramsConfig(
                mode="tr" if self.has_programs else "off",
                state="none",
                backend_capacity_tokens=self.program_tokens,
                max_wait_secs=self.program_wait_secs,
                patience_secs=self.patience_secs,
                displace_secs=self.displace_secs,
            ),
        )
