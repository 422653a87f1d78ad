"""ServedModels: which backends serve each model, and which models have been served before.

Backends come and go, load models and drop them. Requests for a model go to the healthy backends that list it and are not
drained; those that are ejected get none, unless all of them are. A model of which no backend is up stays known, because its
backends may come back: it has its pool of slots, and its requests wait there or get a 503.

A model has vanished when no backend lists it any more, not even one that is down. Its pool is removed as soon as no request of
it is left, or a backend that lists other names at each poll would fill the memory. The name itself is remembered for a while
(`MAX_FORMER_MODELS`), so that its clients still get a 503 and not a 404: it may be on its way to another backend.

A request is told its model once (`ServedModel`), and reads there which backends may have it, as often as it must.

Example: a and b list m. b goes down: m has the slots of a. a drops m: m is known, because b has listed it last. b comes up and
lists n: m has vanished, and its pool goes with its last request. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from maitred.scheduler.backends.backend import Backend

MAX_FORMER_MODELS: Final = 1_000
"""Models that have vanished and are remembered; beyond, the one that vanished first is forgotten."""


ANY_MODEL: Final = ""
"""Stands for all models: every backend that is in use serves it."""


class ServedModel:
    """A model that backends serve, or have served."""

    __slots__ = ("backends", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.backends: tuple[Backend, ...] = ()
        """The healthy backends that serve it now and are neither drained nor ejected; the ejected ones if all are."""


class ServedModels:
    """The models of one fleet. Call `update` when a backend has changed."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self.vanished: list[str] = []
        """Models that no backend lists any more, and that are still known."""
        self._backends = backends
        self._any = ServedModel(ANY_MODEL)
        self._known: dict[str, ServedModel] = {}
        self._former: dict[str, ServedModel] = {}
        """The models that have vanished. A request may refer to one, which goes on if the model comes back."""

    @property
    def names(self) -> Sequence[str]:
        """All models that are known."""
        return list(self._known)

    def find(self, model: str) -> ServedModel | None:
        """Return a model that is known, or None."""
        return self._known.get(model) if model else self._any

    def backends_serving(self, model: str) -> tuple[Backend, ...]:
        """Return the backends that get requests for `model` now (`ServedModel.backends`), none if it is not known."""
        found = self.find(model)
        return () if found is None else found.backends

    def is_known(self, model: str) -> bool:
        """Return whether a backend serves `model`, or requests of it may be left."""
        return model in self._known

    def was_served(self, model: str) -> bool:
        """Return whether a backend serves `model`, or has served it."""
        return model in self._known or model in self._former

    def update(self) -> Sequence[str]:
        """Look at all backends anew, and return all models that are known, which may have other backends now."""
        listed = dict.fromkeys(name for backend in self._backends for name in backend.models)
        usable = tuple(backend for backend in self._backends if backend.healthy and not backend.is_draining)
        self._any.backends = _not_ejected(usable)
        for name in listed:
            if name not in self._known:
                self._known[name] = self._former.pop(name) if name in self._former else ServedModel(name)
        for name, model in self._known.items():
            model.backends = _not_ejected(tuple(b for b in usable if name in b.models))
        for backend in self._backends:
            backend.is_in_use = backend in self._any.backends
            served = [self._known[name] for name in backend.models]
            backend.is_left = backend.circuit.is_ejected and all(backend not in model.backends for model in served)
        self.vanished = [name for name in self._known if name not in listed]
        return list(self._known)

    def forget(self, model: str) -> None:
        """Drop a model that has vanished, and of which no request is left."""
        self.vanished.remove(model)
        self._former[model] = self._known.pop(model)
        if len(self._former) > MAX_FORMER_MODELS:
            del self._former[next(iter(self._former))]

    def list_models(self) -> Sequence[dict[str, Any]]:
        """Return the entries of `/v1/models`: the models of the healthy backends, each once."""
        merged: dict[str, dict[str, Any]] = {}
        for backend in self._backends:
            if backend.healthy:
                for name, model in backend.models.items():
                    merged.setdefault(name, model)
        return list(merged.values())


def _not_ejected(backends: tuple[Backend, ...]) -> tuple[Backend, ...]:
    """Return those of `backends` that are not ejected, or all of them if all are."""
    return tuple(backend for backend in backends if not backend.circuit.is_ejected) or backends
