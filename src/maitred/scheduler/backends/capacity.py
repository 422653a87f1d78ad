"""Capacity: the slots of each model follow the fleet, and reservations are checked against them. A model stands here for its
pool, which it may share with its adapters (`slot_pools`).

**At start-up** the question is whether classes can be used at all. It is asked once, when every backend has been polled and
some model has slots. If the reservations exceed the slots, then, as `on_overcommit` says, the gateway scales the reservations
down, or it serves without classes (mode `legacy`) and reports that with the cure. Requests in flight are then limited to
`legacy.max_concurrent_requests`, or, where no number is given, to the slots of the fleet, which the limit follows. While its
backends start one by one, a fleet may seem too small at first. So a gateway that serves without classes for this reason alone
takes them into use as soon as every model has enough slots, and keeps them from then on. Under `flavour: smg` the question is
asked before any backend is known, against the capacity that SMG assumes then, and the answer is final.

Example: the classes reserve 4 slots, each of two backends has 3. When the first backend is up and the second has failed its
first poll, 4 > 3 and the gateway serves without classes; when the second backend comes up, 4 <= 6 and classes are used.

**Later** the fleet may shrink below the reservations and recover. The core scales the reservations down and back; here it is
logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from maitred.admission import AdmissionConfig, PoolView, bootstrap_problem, overcommit_problem
from maitred.admission.terms.config import MAX_SLOTS
from maitred.core.errors import ConfigError
from maitred.core.request import RequestId
from maitred.scheduler.backends.backend import Backend
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.backends.slot_learning import SlotLearning
from maitred.scheduler.backends.slot_pools import FleetListener, SlotCount
from maitred.scheduler.drivers.admission import RealTimeAdmission

log = logging.getLogger("maitred.gateway")


class CapacityController(FleetListener):
    """Sets the slots of all models. `fallback` is why classes are configured and not used, or None."""

    def __init__(
        self,
        fleet: FleetView,
        admission: RealTimeAdmission,
        learning: SlotLearning,
        *,
        fallback: str | None = None,
    ) -> None:
        self.fallback = fallback
        self._fleet = fleet
        self._admission = admission
        self._learning = learning
        self._last_logged: dict[str, SlotCount] = {}
        self._pending_config: AdmissionConfig | None = None
        """The config to put in force once its reservations fit, or None if there is none."""
        self._follows_fleet = False
        """Whether the limit of the legacy admission is the slots of the fleet."""
        self._startup_checked = False
        """Whether the reservations have been checked at start-up."""
        if self._config.preset.bootstrap_capacity is not None:
            self._startup_checked = True
            problem = bootstrap_problem(self._config)
            if problem is not None:
                self._fall_back_to_legacy(problem)

    def on_slots_changed(self, pools: Iterable[str], backends: Iterable[Backend]) -> None:
        """Pass on new numbers of slots."""
        self._learning.choose_sources(backends)
        for model, slots, lead in self._fleet.pools.sizes(pools):
            self._admission.resize_pool(model, slots, lead)
            self._log_change(model)
        self._limit_fallback()
        if not self._startup_checked and self._fleet.all_polled:
            self._check_at_startup()
        elif self._pending_config is not None and self._fits(self._pending_config):
            log.warning("the reservations fit now: serving with classes")
            self._reconfigure(self._pending_config)

    def on_vanished(self, pool: str) -> bool:
        if not self._admission.forget_pool(pool):
            return False
        self._last_logged.pop(pool, None)
        log.info("model `%s` has vanished: no backend lists it any more", pool)
        return True

    def on_stranded(self, request_id: RequestId, stranded: bool) -> None:
        self._admission.set_stranded(request_id, stranded=stranded)

    def check_fit(self, config: AdmissionConfig) -> None:
        """Raise ConfigError for a config with which a start on the present fleet would fall back to mode `legacy`."""
        # Under a flavour that assumes a capacity there is no misfit with the fleet, and under another no such problem.
        problem = bootstrap_problem(config) or self._misfit(config)
        if problem is not None and config.falls_back_on_overcommit:
            raise ConfigError(problem, where="admission.classes", hint=config.overcommit_cure)

    def reconfigure(self, config: AdmissionConfig) -> None:
        """Use `config` from now on. Raises ConfigError, and changes nothing then."""
        self.check_fit(config)
        self._reconfigure(config)

    @property
    def _config(self) -> AdmissionConfig:
        return self._admission.core.config

    def _reconfigure(self, config: AdmissionConfig) -> None:
        self._admission.reconfigure(config)
        self.fallback = self._pending_config = None
        self._follows_fleet = False
        self._warn_where_scaled_down(self._fleet.pools.names)

    def _check_at_startup(self) -> None:
        """Check the reservations once some model has slots; fall back, or let the core scale them down."""
        if not any(self._fleet.pools.offered_slots(model).slots for model in self._fleet.pools.names):
            return
        self._startup_checked = True
        problem = self._misfit(self._config)
        if problem is not None and self._config.on_overcommit == "legacy":
            self._pending_config = self._config
            self._fall_back_to_legacy(problem)
        elif problem is not None:
            log.warning("%s: reservations are scaled down", problem)
        self._warn_where_scaled_down(self._fleet.pools.names)

    def _fall_back_to_legacy(self, problem: str) -> None:
        limit, cure = self._config.legacy.max_concurrent_requests, self._config.overcommit_cure
        allowed = f"at most {limit} requests in flight" if limit > 0 else "as many requests in flight as the fleet has slots"
        self.fallback = f"{problem}: serving without classes, {allowed} ({cure})"
        log.error("priority scheduler failed to start; falling back to legacy admission: %s", self.fallback)
        self._admission.reconfigure(msgspec.structs.replace(self._config, mode="legacy"))
        self._limit_fallback()

    def _limit_fallback(self) -> None:
        """Limit a gateway that serves with less than its configuration to the slots of the fleet, where no number is given. A
        fleet that is down says nothing, and the last limit stays."""
        config = self._config
        if self.fallback is None or config.mode != "legacy":
            return
        serving = [backend for backend in self._fleet.healthy if not backend.is_draining]
        slots = min(MAX_SLOTS, sum(self._fleet.pools.backend_slots(backend).slots for backend in serving))
        if slots and (config.legacy.max_concurrent_requests <= 0 or self._follows_fleet):
            self._follows_fleet = True
            if config.legacy.max_concurrent_requests != slots:
                legacy = msgspec.structs.replace(config.legacy, max_concurrent_requests=slots)
                self._admission.reconfigure(msgspec.structs.replace(config, legacy=legacy))

    def _misfit(self, config: AdmissionConfig) -> str | None:
        """Return the problem of the first model with fewer slots than are reserved, or None."""
        if config.mode != "priority" or config.preset.bootstrap_capacity is not None or not self._fleet.all_polled:
            return None
        for model in self._fleet.pools.names:
            # A model without slots has no backend up, and so says nothing about the size of its fleet.
            # A number that is being learned says nothing yet; the core scales reservations to it.
            if any(backend.learned_slots is not None for backend in self._fleet.pools.backends(model)):
                continue
            slots = self._fleet.pools.offered_slots(model).slots
            problem = overcommit_problem(config, slots) if slots else None
            if problem is not None:
                return f"{problem} of model `{model}`"
        return None

    def _fits(self, config: AdmissionConfig) -> bool:
        """Return whether every model has slots, and as many as `config` reserves."""
        return (
            all(self._fleet.pools.offered_slots(model).slots for model in self._fleet.pools.names)
            and self._misfit(config) is None
        )

    def _log_change(self, model: str) -> None:
        """Log what the healthy backends offer, if it has changed; not the slots left at a backend that is down."""
        before, now = self._last_logged.get(model, SlotCount(0, "none")), self._fleet.pools.offered_slots(model)
        if now != before:
            self._last_logged[model] = now
            # Learned numbers change all the time; `slot_learning` tells what matters of them.
            level = logging.DEBUG if before.source == now.source == "learned" else logging.INFO
            log.log(level, "capacity of model `%s`: %d slots (%s), before: %d", model, now.slots, now.source, before.slots)
            if self._startup_checked and level == logging.INFO:
                self._warn_where_scaled_down([model])

    def _warn_where_scaled_down(self, models: Iterable[str]) -> None:
        """Log a warning for each of `models` that has its reservations scaled down."""
        if self._config.mode != "priority":
            return
        for model in models:
            view = self._admission.core.view(model)
            if view.capacity and any(c.reserved < c.desired for c in view.classes.values()):
                _log_scaled_down(model, view)


def _log_scaled_down(model: str, view: PoolView) -> None:
    classes = {c.label: of_class for c, of_class in view.classes.items() if of_class.desired}
    changes = ", ".join(f"{name} {of_class.reserved} instead of {of_class.desired}" for name, of_class in classes.items())
    unreserved = view.capacity - sum(of_class.reserved for of_class in classes.values())
    message = "capacity of model `%s` (%d) is below the configured reservations: %s, %d unreserved"
    log.warning(message, model, view.capacity, changes, unreserved)
