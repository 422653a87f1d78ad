"""What the gateway shows of its programs: the lists and sums of ThunderAgent's pages, with fields of our own beside them.

A request without a program id is a program of its own while it is here. It has no name to be listed under, but it holds memory,
so the counts and sums have it.

All is made in steps, in which each program that was there at the first one is counted once, at an instant of its own. One that
has ended by then is left out.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from maitred.core.steps import Steps, in_batches
from maitred.gateway.access.page_access import Viewer
from maitred.gateway.observe.program_profiles import ProfileSummary, ProgramProfiler
from maitred.programs import BackendMemory, Program, ProgramPhase, Programs, ProgramState
from maitred.scheduler.interface import Backend, EngineCounts, FleetView, ProgramMemories

_PROGRAMS_IN_STEP: Final = 150
"""Programs that are shown in a step."""
_LOOKED_AT_IN_STEP: Final = 2_000
"""Programs of which only the id is looked at in a step."""


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

    def add(self, program: Program) -> None:
        """Count a program."""
        is_reasoning = program.phase is ProgramPhase.REASONING
        self.total += 1
        self.reasoning += is_reasoning
        self.acting += not is_reasoning
        self.paused += program.state is ProgramState.PAUSED
        if program.is_marked:
            self.marked_for_pause += 1
            self.future_paused_tokens += program.tokens


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


class _Held:
    """What the programs at one backend are, those that were paused there among them."""

    def __init__(self) -> None:
        self.counts = ProgramCounts()
        self.num_active = 0
        self.num_reasoning = 0
        self.tokens = 0
        self.acting_tokens = 0

    def add(self, program: Program) -> None:
        """Count a program."""
        self.counts.add(program)
        self.tokens += program.tokens
        if program.state is ProgramState.ACTIVE:
            self.num_active += 1
            self.num_reasoning += program.phase is ProgramPhase.REASONING
            self.acting_tokens += program.tokens if program.phase is ProgramPhase.ACTING else 0


class ProgramViews:
    """Makes the views of one gateway, in steps and in O(programs)."""

    def __init__(
        self,
        core: Programs,
        memories: ProgramMemories,
        fleet: FleetView,
        profiler: ProgramProfiler | None,
        kv_interval_secs: float | None,
    ) -> None:
        """`kv_interval_secs` is the time between two readings of the KV memory of a backend; None: it is not read."""
        self._core = core
        self._memories = memories
        self._fleet = fleet
        self._profiler = profiler
        self._kv_interval_secs = kv_interval_secs

    def owners_of(self, name: str) -> Steps[Sequence[str]]:
        """Return in steps the tenants that have a program of this id, sorted."""
        owners: set[str] = set()
        for some in in_batches(self._core.programs, _LOOKED_AT_IN_STEP):
            owners.update(program.key.tenant for program in some if program.key.name == name)
            yield
        return sorted(owners)

    def list_programs(self, viewer: Viewer) -> Iterator[dict[str, ProgramView]]:
        """Yield the programs that `viewer` may see, by name, in the order of creation; some, or none, in each step."""
        for some in self._named_programs(viewer):
            yield {name: self._view(program, names_backend=viewer.sees_all) for name, program in some}

    def list_profiles(self, viewer: Viewer) -> Iterator[dict[str, ProfileSummary]]:
        """Yield the profiles that `viewer` may see, by name; some, or none, in each step."""
        assert self._profiler is not None
        for some in self._named_programs(viewer):
            found = ((name, self._profiler.find(program)) for name, program in some)
            yield {name: profile for name, profile in found if profile is not None}

    def find_profile(self, viewer: Viewer, name: str) -> Steps[dict[str, Any] | None]:
        """Return in steps the profile that `list_profiles` has under this name, with the name, or None."""
        found = None
        for some in self.list_profiles(viewer):
            found = some.get(name, found)
            yield
        return None if found is None else {"program_id": name, **msgspec.to_builtins(found)}

    def _named_programs(self, viewer: Viewer) -> Iterator[list[tuple[str, Program]]]:
        """Yield the programs with an id that `viewer` may see, each with its name; some, or none, in each step."""
        visible, names = list[Program](), _DistinctNames()
        for some in in_batches(self._core.programs, _PROGRAMS_IN_STEP):
            seen = [program for program in some if _is_visible(program, viewer)]
            visible += seen
            names.add(seen)
            yield []
        for some in in_batches(visible, _PROGRAMS_IN_STEP):
            yield [(names.of(program), program) for program in some if program.state is not ProgramState.TERMINATED]

    def survey(self, most: int) -> Steps[tuple[ProgramCounts, dict[str, ProgramView]]]:
        """Return in steps the counts of all programs, and by name those an operator looks for first, at most so many: paused
        ones, marked ones, and then those with most tokens."""
        counts, first = ProgramCounts(), list[Program]()
        for some in in_batches(self._core.programs, _PROGRAMS_IN_STEP):
            present = [program for program in some if program.state is not ProgramState.TERMINATED]
            for program in present:
                counts.add(program)
            first = heapq.nlargest(most, [*first, *(each for each in present if not each.is_anonymous)], key=_urgency)
            yield
        names = _DistinctNames()
        names.add(first)
        shown = {names.of(each): self._view(each, names_backend=True) for each in first}
        return counts, shown

    def health_fields(self) -> Steps[dict[str, Any]]:
        """Return in steps the fields that /health has beside its status."""
        backends = list(self._fleet.backends)
        counts, held = yield from self._sums(backends)
        config = self._core.config
        fields: dict[str, Any] = {
            "router_mode": config.mode,
            "scheduling_enabled": config.mode == "tr",
            "backends": [backend.url for backend in backends],
            "programs_count": counts.total,
            "reasoning_count": counts.reasoning,
            "acting_count": counts.acting,
            "paused_count": counts.paused,
            "profile_enabled": self._profiler is not None,
        }
        if config.mode == "tr":
            fields["per_backend"] = {backend.url: held[backend.url].counts for backend in backends}
        return fields

    def metrics_page(self) -> Steps[dict[str, Any]]:
        """Return in steps ThunderAgent's metrics page."""
        config, backends = self._core.config, list(self._fleet.backends)
        _, held = yield from self._sums(backends)
        pages = {}
        for backend in backends:
            pages[backend.url] = self._memory_page(backend, held[backend.url])
            yield
        return {
            "metrics_enabled": self._kv_interval_secs is not None,
            "metrics_interval": self._kv_interval_secs,
            "lost_kv_tokens": self._core.lost_kv_tokens,
            "waiting_requests": self._core.num_waiting,
            "buffer_per_program": config.buffer_tokens,
            "backends": pages,
        }

    def _sums(self, backends: Sequence[Backend]) -> Steps[tuple[ProgramCounts, Mapping[str, _Held]]]:
        """Return in steps the counts of all programs, and what each of these backends holds, by its URL."""
        counts, held = ProgramCounts(), {backend.url: _Held() for backend in backends}
        by_index: dict[int | None, _Held] = {
            index: held[backend.url] for backend in backends for index in self._memories.indices_of(backend)
        }
        for some in in_batches(self._core.programs, _PROGRAMS_IN_STEP):
            for program in some:
                if program.state is ProgramState.TERMINATED:
                    continue
                counts.add(program)
                index = program.origin if program.backend is None else program.backend
                if index in by_index:
                    by_index[index].add(program)
            yield
        return counts, held

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
            step_count=program.num_requests,
            status=program.phase.value,
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

    def _memory_page(self, backend: Backend, held: _Held) -> MemoryPage:
        indices = self._memories.indices_of(backend)
        memories = [memory for memory in self._core.backends if memory.index in indices]
        capacity = _total_capacity(memories)
        active_tokens = sum(memory.active_tokens for memory in memories)
        overflow = sum(max(0, -int(memory.remaining)) for memory in memories if memory.capacity is not None)
        return MemoryPage(
            url=backend.url,
            active_program_tokens=active_tokens,
            reasoning_program_tokens=sum(memory.reasoning_tokens for memory in memories),
            acting_program_tokens=held.acting_tokens,
            active_program_count=held.num_active,
            reasoning_program_count=held.num_reasoning,
            acting_program_count=held.num_active - held.num_reasoning,
            active_program_tokens_ratio=round(active_tokens / capacity, 4) if capacity else 0.0,
            total_program_tokens=held.tokens,
            paused_program_count=held.counts.paused,
            future_paused_tokens=held.counts.future_paused_tokens,
            shared_tokens=sum(memory.shared_tokens for memory in memories),
            buffer_per_program=self._core.config.buffer_tokens,
            capacity_overflow=overflow,
            remaining_tokens=None if capacity is None else sum(int(memory.remaining) for memory in memories),
            healthy=backend.healthy,
            draining=backend.is_draining,
            monitoring=self._kv_interval_secs is not None,
            ranks=max(1, len(indices)),
            cache_config=_cache_config(backend, capacity),
            metrics=None if backend.kv is None else backend.kv.counts,
        )


def _is_visible(program: Program, viewer: Viewer) -> bool:
    """Return whether a program has an id and `viewer` may see it."""
    return not program.is_anonymous and (viewer.sees_all or program.key.tenant == viewer.tenant)


def _urgency(program: Program) -> tuple[bool, bool, int]:
    return program.state is ProgramState.PAUSED, program.is_marked, program.tokens


class _DistinctNames:
    """Names of programs: the id of each; `model/id` or `tenant/model/id` where several have the same."""

    def __init__(self) -> None:
        self._by_id = Counter[str]()
        self._by_model = Counter[tuple[str, str]]()

    def add(self, programs: Sequence[Program]) -> None:
        """Take note of these programs. The names are known when all have been added."""
        self._by_id.update(program.key.name for program in programs)
        self._by_model.update((program.key.model, program.key.name) for program in programs)

    def of(self, program: Program) -> str:
        """Return the name of a program."""
        tenant, name, model = program.key
        if self._by_id[name] == 1:
            return name
        return f"{model}/{name}" if self._by_model[model, name] == 1 else f"{tenant}/{model}/{name}"


def _total_capacity(memories: Sequence[BackendMemory]) -> int | None:
    capacities = [memory.capacity for memory in memories if memory.capacity is not None]
    return sum(capacities) if memories and len(capacities) == len(memories) else None


def _cache_config(backend: Backend, capacity: int | None) -> CacheConfig | None:
    if capacity is None:
        return None
    report = backend.kv
    return CacheConfig(None if report is None else report.block_size, None if report is None else report.num_blocks, capacity)
