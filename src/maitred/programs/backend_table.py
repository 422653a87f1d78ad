"""The backends by index, and the pool of each model that they serve."""

from __future__ import annotations

from collections.abc import Collection

from maitred.programs.acting_estimators import ActingEstimator
from maitred.programs.backend_memory import BackendMemory
from maitred.programs.config import ProgramsConfig
from maitred.programs.enums import BackendStatus
from maitred.programs.model_pool import ModelPool
from maitred.programs.program import TenantPrograms


class BackendTable:
    """All backends of one core. A backend that serves several models is in the pool of each, and its memory is one."""

    def __init__(self, config: ProgramsConfig, estimator: ActingEstimator) -> None:
        self._config = config
        self._estimator = estimator
        self.holding: dict[str, TenantPrograms] = {}
        """The tenants whose programs have a place at some backend."""
        self.by_index: dict[int, BackendMemory] = {}
        self._in_order: list[BackendMemory] = []
        self._pools: dict[str, ModelPool] = {}
        self._pools_of: dict[int, list[ModelPool]] = {}

    @property
    def all(self) -> Collection[BackendMemory]:
        """All backends in the order of their indexes, so that a tie does not go to the one that was polled first."""
        return self._in_order

    @property
    def pools(self) -> list[ModelPool]:
        """All pools in the order of the names of their models."""
        return [pool for _, pool in sorted(self._pools.items())]

    def __getitem__(self, index: int) -> BackendMemory:
        return self.by_index[index]

    def find(self, index: int | None) -> BackendMemory | None:
        """Return the backend with this index, or None if there is none."""
        return None if index is None else self.by_index.get(index)

    def find_or_add(self, index: int) -> BackendMemory:
        """Return the backend with this index; a new one serves no model yet."""
        backend = self.by_index.get(index)
        if backend is None:
            backend = self.by_index[index] = BackendMemory(index, self._estimator, self._config.buffer_tokens, self.holding)
            self._in_order = [each for _, each in sorted(self.by_index.items())]
            self._pools_of[index] = []
        return backend

    def set_models(self, backend: BackendMemory, models: Collection[str]) -> bool:
        """Note which models a backend serves. Return whether they are others than before."""
        if backend.models == frozenset(models):
            return False
        backend.models = frozenset(models)
        self._pools_of[backend.index] = [self.keep_pool(model) for model in sorted(backend.models)]
        for model, pool in self._pools.items():
            pool.set_backends([other for other in self.all if model in other.models])
        return True

    def set_status(self, backend: BackendMemory, status: BackendStatus) -> None:
        """Set the status of a backend."""
        backend.status = status
        for pool in self._pools_of[backend.index]:
            pool.note_status()

    def keep_pool(self, model: str) -> ModelPool:
        """Return the pool of a model that some backend serves, or has served."""
        if model not in self._pools:
            self._pools[model] = ModelPool(self._config, self._estimator, self.holding)
        return self._pools[model]

    def pool(self, model: str) -> ModelPool:
        """Return the pool of a model. For one that no backend has ever served it is empty and not kept, because clients name
        models."""
        return self._pools.get(model) or ModelPool(self._config, self._estimator, self.holding)

    def pools_of(self, backend: BackendMemory) -> list[ModelPool]:
        """Return the pools of the models that a backend serves, by name."""
        return self._pools_of[backend.index]

    def models(self) -> Collection[str]:
        """Return the models that have a pool."""
        return self._pools

    def set_config(self, config: ProgramsConfig) -> None:
        """Go by `config` from now on."""
        self._config = config
        for pool in self._pools.values():
            pool.set_config(config)
