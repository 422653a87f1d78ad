"""The backends by index, and the pool of each model that they serve."""

from __future__ import annotations

from collections.abc import Collection

from maitred.programs.acting_estimators import ActingEstimator
from maitred.programs.backend_memory import BackendMemory
from maitred.programs.config import ProgramsConfig
from maitred.programs.model_pool import ModelPool


class BackendTable:
    """All backends of one core. A backend that serves several models is in the pool of each, and its memory is one."""

    def __init__(self, config: ProgramsConfig, estimator: ActingEstimator) -> None:
        self._config = config
        self._estimator = estimator
        self._backends: dict[int, BackendMemory] = {}
        self._models_of: dict[int, frozenset[str]] = {}
        self._pools: dict[str, ModelPool] = {}

    @property
    def all(self) -> Collection[BackendMemory]:
        """All backends in the order in which they came."""
        return self._backends.values()

    @property
    def pools(self) -> list[ModelPool]:
        """All pools in the order of the names of their models."""
        return [pool for _, pool in sorted(self._pools.items())]

    def __getitem__(self, index: int) -> BackendMemory:
        return self._backends[index]

    def find_or_add(self, index: int) -> BackendMemory:
        """Return the backend with this index; a new one serves no model yet."""
        backend = self._backends.get(index)
        if backend is None:
            backend = self._backends[index] = BackendMemory(index, self._estimator, self._config.buffer_tokens)
            self._models_of[index] = frozenset()
        return backend

    def set_models(self, backend: BackendMemory, models: Collection[str]) -> None:
        """Note which models a backend serves. Programs of other models that are there stay until they are idle."""
        if self._models_of[backend.index] == frozenset(models):
            return
        self._models_of[backend.index] = frozenset(models)
        for model in models:
            self.pool(model)
        for model, pool in self._pools.items():
            pool.backends = [other for other in self.all if model in self._models_of[other.index]]

    def pool(self, model: str) -> ModelPool:
        """Return the pool of a model, which has no backends if none serves it."""
        pool = self._pools.get(model)
        if pool is None:
            pool = self._pools[model] = ModelPool(self._config)
        return pool

    def pools_of(self, backend: BackendMemory) -> list[ModelPool]:
        """Return the pools of the models that a backend serves, by name."""
        return [self._pools[model] for model in sorted(self._models_of[backend.index])]

    def models(self) -> Collection[str]:
        """Return the models that have a pool."""
        return self._pools

    def set_config(self, config: ProgramsConfig) -> None:
        """Go by `config` from now on."""
        self._config = config
        for pool in self._pools.values():
            pool.set_config(config)
