"""What the gateway shows of its programs: the lists and sums of ThunderAgent's pages, with fields of our own beside them.

A request without a program id is a program of its own while it is here. It has no name to be listed under, but it holds memory,
so the counts and sums have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from maitred.gateway.backend import Backend
from maitred.gateway.engine_report import EngineCounts
from maitred.gateway.fleet import BackendFleet
from maitred.gateway.page_access import Viewer
from maitred.gateway.program_memories import ProgramMemories
from maitred.gateway.program_profiles import ProfileSummary, ProgramProfiler
from maitred.programs import BackendMemory, Program, Programs, ProgramState, ProgramStatus


class ProgramView(msgspec.Struct, kw_only=True):
    """One program. The first six fields are ThunderAgent's."""

    backend: str | None
    """URL, or for a tenant `backend-N`, which tells one from another; null while the program is paused."""
    context_len: int
    """Characters of the body of its last request."""
    total_tokens: int
    step_count: int
    status: str
    state: str
    tenant: str
    model: str
    rank: int | None
    """Data-parallel rank at the backend, or null."""
    parent: str | None
    priority_class: str
    marked_for_pause: bool
    requests_in_flight: int
    requests_waiting: int
    profile: ProfileSummary | msgspec.UnsetType | None = msgspec.UNSET


class ProgramCounts(msgspec.Struct):
    """Counts over programs."""

    total: int = 0
    reasoning: int = 0
    acting: int = 0
    paused: int = 0
    """Paused ones; of a backend those that were paused there."""
    marked_for_pause: int = 0
    future_paused_tokens: int = 0
    """Tokens of the marked ones."""


class CacheConfig(msgspec.Struct, omit_defaults=True):
    """The KV memory of a backend, all ranks together."""

    block_size: int | None = None
    num_gpu_blocks: int | None = None
    total_tokens_capacity: int | None = None


class MemoryPage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One backend on ThunderAgent's metrics page. All sums are over its ranks."""

    url: str
    active_program_tokens: int
    """Reasoning tokens and what acting ones are charged."""
    reasoning_program_tokens: int
    acting_program_tokens: int
    """Not weighted."""
    active_program_count: int
    reasoning_program_count: int
    acting_program_count: int
    active_program_tokens_ratio: float
    """Of the capacity, 4 decimal places; 0 if that is unknown."""
    total_program_tokens: int
    """With those of programs that were paused here."""
    paused_program_count: int
    future_paused_tokens: int
    shared_tokens: int
    buffer_per_program: int
    capacity_overflow: int
    remaining_tokens: int | None
    """Null if the capacity is unknown."""
    healthy: bool
    draining: bool
    monitoring: bool
    """Whether its KV memory is read."""
    ranks: int
    cache_config: CacheConfig | None = None
    metrics: EngineCounts | None = None


class ProgramViews:
    """Makes the views of one gateway. Each is made at one instant, in O(programs)."""

    def __init__(
        self, core: Programs, memories: ProgramMemories, fleet: BackendFleet, profiler: ProgramProfiler | None
    ) -> None:
        self._core = core
        self._memories = memories
        self._fleet = fleet
        self._profiler = profiler

    def visible_programs(self, viewer: Viewer) -> Sequence[Program]:
        """Return the programs with an id that `viewer` may see, in the order of creation."""
        return [
            program
            for program in self._core.programs
            if not program.is_anonymous and (viewer.sees_all or program.key.tenant == viewer.tenant)
        ]

    def list_programs(self, viewer: Viewer) -> dict[str, ProgramView]:
        """Return the programs that `viewer` may see, by name."""
        programs = self.visible_programs(viewer)
        views = (self._view(program, names_backend=viewer.sees_all) for program in programs)
        return dict(zip(_distinct_names(programs), views, strict=True))

    def list_profiles(self, viewer: Viewer) -> dict[str, ProfileSummary]:
        """Return the profiles that `viewer` may see, by name."""
        assert self._profiler is not None
        programs = self.visible_programs(viewer)
        found = (
            (name, self._profiler.find(program)) for name, program in zip(_distinct_names(programs), programs, strict=True)
        )
        return {name: profile for name, profile in found if profile is not None}

    def health_fields(self) -> dict[str, Any]:
        """Return the fields that /health has beside its status."""
        config, counts = self._core.config, _count(self._core.programs)
        fields: dict[str, Any] = {
            "router_mode": config.mode,
            "scheduling_enabled": config.mode == "tr",
            "backends": [backend.url for backend in self._fleet.backends],
            "programs_count": counts.total,
            "reasoning_count": counts.reasoning,
            "acting_count": counts.acting,
            "paused_count": counts.paused,
            "profile_enabled": self._profiler is not None,
        }
        if config.mode == "tr":
            each = ((backend, self._programs_of(backend)) for backend in self._fleet.backends)
            fields["per_backend"] = {backend.url: _count(programs) for backend, programs in each}
        return fields

    def metrics_page(self) -> dict[str, Any]:
        """Return ThunderAgent's metrics page."""
        config, is_read = self._core.config, self._fleet.reads_kv
        return {
            "metrics_enabled": is_read,
            "metrics_interval": self._fleet.kv_interval_secs if is_read else None,
            "lost_kv_tokens": self._core.lost_kv_tokens,
            "waiting_requests": self._core.num_waiting,
            "buffer_per_program": config.buffer_tokens,
            "backends": {backend.url: self._memory_page(backend) for backend in self._fleet.backends},
        }

    @property
    def max_programs_per_tenant(self) -> int:
        """Programs that a tenant may have."""
        return self._core.config.max_programs_per_tenant

    def _view(self, program: Program, *, names_backend: bool) -> ProgramView:
        target = None if program.backend is None else self._memories.target(program.backend)
        backend = None if target is None else target.backend
        view = ProgramView(
            backend=None if backend is None else backend.url if names_backend else f"backend-{backend.index}",
            context_len=program.characters,
            total_tokens=program.tokens,
            step_count=program.step_count,
            status=program.status.value,
            state=program.state.value,
            tenant=program.key.tenant,
            model=program.key.model,
            rank=None if target is None else target.rank,
            parent=None if program.parent is None else program.parent.key.name,
            priority_class=program.priority_class.label,
            marked_for_pause=program.is_marked,
            requests_in_flight=len(program.contexts),
            requests_waiting=len(program.waiting),
        )
        if self._profiler is not None:
            view.profile = self._profiler.find(program)
        return view

    def _programs_of(self, backend: Backend) -> Sequence[Program]:
        """Return the programs at a backend, and those that were paused there."""
        indices = self._memories.indices_of(backend)
        return [p for p in self._core.programs if (p.origin if p.backend is None else p.backend) in indices]

    def _memory_page(self, backend: Backend) -> MemoryPage:
        indices = self._memories.indices_of(backend)
        memories = [memory for memory in self._core.backends if memory.index in indices]
        programs = self._programs_of(backend)
        counts = _count(programs)
        active = [program for program in programs if program.state is ProgramState.ACTIVE]
        reasoning = [program for program in active if program.status is ProgramStatus.REASONING]
        capacity = _total_capacity(memories)
        active_tokens = sum(memory.active_tokens for memory in memories)
        overflow = sum(max(0, -int(memory.remaining)) for memory in memories if memory.capacity is not None)
        return MemoryPage(
            url=backend.url,
            active_program_tokens=active_tokens,
            reasoning_program_tokens=sum(memory.reasoning_tokens for memory in memories),
            acting_program_tokens=sum(p.tokens for p in active if p.status is ProgramStatus.ACTING),
            active_program_count=len(active),
            reasoning_program_count=len(reasoning),
            acting_program_count=len(active) - len(reasoning),
            active_program_tokens_ratio=round(active_tokens / capacity, 4) if capacity else 0.0,
            total_program_tokens=sum(program.tokens for program in programs),
            paused_program_count=counts.paused,
            future_paused_tokens=counts.future_paused_tokens,
            shared_tokens=sum(memory.shared_tokens for memory in memories),
            buffer_per_program=self._core.config.buffer_tokens,
            capacity_overflow=overflow,
            remaining_tokens=None if capacity is None else sum(int(memory.remaining) for memory in memories),
            healthy=backend.healthy,
            draining=backend.is_draining,
            monitoring=self._fleet.reads_kv,
            ranks=max(1, len(indices)),
            cache_config=_cache_config(backend, capacity),
            metrics=None if backend.kv is None else backend.kv.counts,
        )


def _count(programs: Iterable[Program]) -> ProgramCounts:
    counts = ProgramCounts()
    for program in programs:
        is_reasoning = program.status is ProgramStatus.REASONING
        counts.total += 1
        counts.reasoning += is_reasoning
        counts.acting += not is_reasoning
        counts.paused += program.state is ProgramState.PAUSED
        if program.is_marked:
            counts.marked_for_pause += 1
            counts.future_paused_tokens += program.tokens
    return counts


def _distinct_names(programs: Sequence[Program]) -> Sequence[str]:
    """Return a name for each program: its id; `model/id` or `tenant/model/id` where several have the same."""
    by_id = Counter(program.key.name for program in programs)
    by_model = Counter((program.key.model, program.key.name) for program in programs)
    names = []
    for tenant, name, model in (program.key for program in programs):
        if by_id[name] == 1:
            names.append(name)
        else:
            names.append(f"{model}/{name}" if by_model[model, name] == 1 else f"{tenant}/{model}/{name}")
    return names


def _total_capacity(memories: Sequence[BackendMemory]) -> int | None:
    capacities = [memory.capacity for memory in memories if memory.capacity is not None]
    return sum(capacities) if memories and len(capacities) == len(memories) else None


def _cache_config(backend: Backend, capacity: int | None) -> CacheConfig | None:
    if capacity is None:
        return None
    report = backend.kv
    return CacheConfig(None if report is None else report.block_size, None if report is None else report.num_blocks, capacity)
