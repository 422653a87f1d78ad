"""What a gateway knows of the scheduler: it imports this module and `config`, and nothing else of the package.

A `Scheduler` decides for the requests of a gateway. For a request it is asked in this order:

    fleet.find_model           which backends serve its model now, and are there any (`ServedModel`)
    programs.begin             may its program hold memory (`MemoryLease`, until `programs.end`)
    admission.submit           may it enter now (`SlotLease`, until `admission.release`)
    placement(request).first   which backend, and after a failure which one `next`
    fleet.add_request          it is at that backend now (`UpstreamRequest`, until `fleet.remove_request`)
    admission.confirm_first_byte    may its response begin; from there on it is no victim
    fleet.ejection             what has become of it at that backend

What an operator sees (`fleet`, `capacity`, the cores behind `admission` and `programs`) is read; an operator drains backends
(`fleet.drain`) and releases programs (`programs.release`).

Everything is called directly, in one event loop. What a request waits for is awaited: memory (`MemoryLease.wait`), a slot
(`SlotLease.wait`), another place after a failure (`Placement.next`). A decision that takes something away from a request comes
as the cancellation of its scope: the slot (`SlotLease`), or the backend (`UpstreamRequest`).
"""

from __future__ import annotations

from maitred.scheduler.addresses import LinkAddress
from maitred.scheduler.backend_set import Presence
from maitred.scheduler.backends.backend import Backend, UpstreamRequest
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.backends.served_models import ANY_MODEL, ServedModel
from maitred.scheduler.backends.slot_pools import SlotSource
from maitred.scheduler.discovery.base import SOURCES, BackendSource, SourceError, SourceListener, checked_urls
from maitred.scheduler.discovery.driver import ADMIN as ADMIN_SOURCE
from maitred.scheduler.discovery.driver import Discovery, SourceState
from maitred.scheduler.drivers.admission import AdmissionRejected, RealTimeAdmission, SlotLease
from maitred.scheduler.drivers.programs import MemoryLease, ProgramRejected, RealTimePrograms
from maitred.scheduler.ejection import Circuit, CircuitState
from maitred.scheduler.engines.report import EngineCounts
from maitred.scheduler.failures import (
    RETRYABLE_ERRORS,
    AnsweredError,
    BackendAbandoned,
    FailedAttempts,
    NotFoundThere,
    UsageRefused,
    is_blameless,
    is_free,
)
from maitred.scheduler.link.gateway_books import BookedGateway, GatewayId
from maitred.scheduler.link.messages import Note as LinkNote
from maitred.scheduler.link.scheduler_end import GATEWAY_LEASE
from maitred.scheduler.placements import MemoryLost, Place
from maitred.scheduler.programs.memories import ProgramMemories, with_rank
from maitred.scheduler.programs.parts import ProgramParts
from maitred.scheduler.requests import ScheduledRequest
from maitred.scheduler.scheduler import LocalScheduler, Scheduler, SchedulerParts
from maitred.scheduler.sharing.dialer import Dialer, Finder, KnownAddresses
from maitred.scheduler.sharing.elections.election import ElectedAddresses, Election, ElectionCandidate, SoleScheduler
from maitred.scheduler.sharing.elections.opening import open_election
from maitred.scheduler.sharing.host import SchedulerHost
from maitred.scheduler.sharing.hosted_scheduler import HostedScheduler
from maitred.scheduler.sharing.link_client import LinkClient
from maitred.scheduler.sharing.mode_times import ModeTimes
from maitred.scheduler.sharing.own_host import OwnHost
from maitred.scheduler.sharing.remote_scheduler import RemoteScheduler
from maitred.scheduler.sharing.unlinked import NO_SCHEDULER, Degrading

__all__ = [
    "ADMIN_SOURCE",
    "ANY_MODEL",
    "GATEWAY_LEASE",
    "NO_SCHEDULER",
    "RETRYABLE_ERRORS",
    "SOURCES",
    "AdmissionRejected",
    "AnsweredError",
    "Backend",
    "BackendAbandoned",
    "BackendSource",
    "BookedGateway",
    "Circuit",
    "CircuitState",
    "Degrading",
    "Dialer",
    "Discovery",
    "ElectedAddresses",
    "Election",
    "ElectionCandidate",
    "EngineCounts",
    "FailedAttempts",
    "Finder",
    "FleetView",
    "GatewayId",
    "HostedScheduler",
    "KnownAddresses",
    "LinkAddress",
    "LinkClient",
    "LinkNote",
    "LocalScheduler",
    "MemoryLease",
    "MemoryLost",
    "ModeTimes",
    "NotFoundThere",
    "OwnHost",
    "Place",
    "Presence",
    "ProgramMemories",
    "ProgramParts",
    "ProgramRejected",
    "RealTimeAdmission",
    "RealTimePrograms",
    "RemoteScheduler",
    "ScheduledRequest",
    "Scheduler",
    "SchedulerHost",
    "SchedulerParts",
    "ServedModel",
    "SlotLease",
    "SlotSource",
    "SoleScheduler",
    "SourceError",
    "SourceListener",
    "SourceState",
    "UpstreamRequest",
    "UsageRefused",
    "checked_urls",
    "is_blameless",
    "is_free",
    "open_election",
    "with_rank",
]
