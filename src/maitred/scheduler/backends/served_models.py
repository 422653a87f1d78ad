"""ServedModels: which backends serve each model, and which models have been served before.

Backends come and go, load models and drop them. Requests for a model go to the healthy backends that list it and are not
drained; those that are ejected get none, unless all of them are. A model of which no backend is up stays known, because its
backends may come back: it has its pool of slots, and its requests wait there or get a 503.

A model has vanished when no backend lists it any more, not even one that is down. Its pool is removed as soon as no request of
it is left, or a backend that lists other names at each poll would fill the memory. The name itself is remembered for a while
(`MAX_FORMER_MODELS`), so that its clients still get a 503 and not a 404: it may be on its way to another backend.

A request is told its model once (`ServedModel`), and reads there which backends may have it, as often as it must.

**Hundreds of backends, hundreds of models.** A backend that comes up changes each of its models, but not the other backends. So
`update` looks at every backend once, and draws the consequences for the models of those that have changed: O(backends + models
of these). Models that the same backends serve share one tuple, which is made once for all of them.

Example: a and b list m. b goes down: m has the slots of a. a drops m: m is known, because b has listed it last. b comes up and
lists n: m has vanished, and its pool goes with its last request. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from maitred.scheduler.backends.backend import Backend

MAX_FORMER_MODELS: Final = 1_000
"""Models that have vanished and are remembered; beyond, the one that vanished first is forgotten."""


ANY_MODEL: Final = ""
"""Stands for all models: every backend that is in use serves it."""


class ServedModel:
    """A model that backends serve, or have served."""

    __slots__ = ("backends", "listed_by", "name", "usable")

    def __init__(self, name: str) -> None:
        self.name = name
        self.listed_by = 0
        """How many backends list it, those that are down included."""
        self.usable: tuple[Backend, ...] = ()
        """The healthy backends that list it and are not drained, in the order of their numbers."""
        self.backends: tuple[Backend, ...] = ()
        """The healthy backends that serve it now and are neither drained nor ejected; the ejected ones if all are."""


class ServedChange(NamedTuple):
    """What an update has found."""

    models: Sequence[str]
    """Models that may have other backends than before, those included that were not known."""
    backends: Sequence[Backend]
    """Backends that have changed, those included that have gone."""


class _Seen(NamedTuple):
    """A backend as an update has last seen it."""

    number: int
    models: dict[str, dict[str, Any]]
    is_usable: bool
    is_ejected: bool


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
        self._seen: dict[Backend, _Seen] = {}
        self._ejected: dict[Backend, None] = {}

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

    def update(self) -> ServedChange:
        """Look at all backends anew, and say what has changed since the last time."""
        seen = self._seen
        for backend in self._backends:
            if backend not in seen:
                seen[backend] = _Seen(backend.index, {}, False, False)
        if any(backend.index != was.number for backend, was in seen.items()):
            self._begin_anew()
        changed = [(backend, was, now) for backend, was in seen.items() if (now := _look(backend, was)) is not was]
        touched: dict[ServedModel, None] = {}
        for backend, was, now in changed:
            self._take_over(backend, was, now, touched)
        made = _Tuples()
        for model in touched:
            model.backends = made.without_ejected(model.usable) if self._ejected else model.usable
        if touched:
            self._note_use([backend for backend, _, _ in changed])
        self.vanished += [model.name for model in touched if not model.listed_by and model is not self._any]
        self.vanished = [name for name in dict.fromkeys(self.vanished) if not self._known[name].listed_by]
        return ServedChange([model.name for model in touched if model.name], [backend for backend, _, _ in changed])

    def _begin_anew(self) -> None:
        """Forget what was seen, because backends have other numbers, and so another order."""
        for model in (self._any, *self._known.values()):
            model.listed_by, model.usable, model.backends = 0, (), ()
        for backend in self._seen:
            self._seen[backend] = _Seen(backend.index, {}, False, False)
        self._ejected.clear()

    def _take_over(self, backend: Backend, was: _Seen, now: _Seen, touched: dict[ServedModel, None]) -> None:
        """Draw the consequences of what a backend was and is, and add the models that may have other backends to `touched`."""
        if backend.is_gone:
            del self._seen[backend]
        else:
            self._seen[backend] = now
        if now.is_ejected:
            self._ejected[backend] = None
        else:
            self._ejected.pop(backend, None)
        is_same, made = was.is_usable == now.is_usable, _Tuples()
        if now.is_usable is not was.is_usable:
            self._any.usable = made.changed(self._any.usable, backend, is_in=now.is_usable)
        if not is_same or was.is_ejected is not now.is_ejected:
            touched[self._any] = None
        for name in was.models:
            if name not in now.models:
                model = self._known[name]
                model.listed_by -= 1
                touched[model] = None
                if was.is_usable:
                    model.usable = made.changed(model.usable, backend, is_in=False)
        for name in now.models:
            model = self._known.get(name) or self._make(name)
            is_new = name not in was.models
            model.listed_by += is_new
            if (was.is_usable and not is_new) is not now.is_usable:
                model.usable = made.changed(model.usable, backend, is_in=now.is_usable)
            elif not is_new and was.is_ejected is now.is_ejected:
                continue
            touched[model] = None

    def _make(self, name: str) -> ServedModel:
        model = self._known[name] = self._former.pop(name) if name in self._former else ServedModel(name)
        return model

    def _note_use(self, changed: Iterable[Backend]) -> None:
        """Say which backends are in use, and which are left. Ejected ones go by all the others as well."""
        all_ejected = bool(self._any.backends) and self._any.backends[0].circuit.is_ejected
        for backend in changed:
            now = self._seen.get(backend)
            backend.is_in_use, backend.is_left = now is not None and now.is_usable, False
        for backend in self._ejected:
            is_usable = self._seen[backend].is_usable
            backend.is_in_use = is_usable and all_ejected
            # If an ejected backend serves a model, all that serve it are ejected.
            serving = (self._known[name].backends for name in (backend.models if is_usable else ()))
            backend.is_left = not any(others[0].circuit.is_ejected for others in serving)

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


def _look(backend: Backend, was: _Seen) -> _Seen:
    """Return how a backend is now: `was` itself if that is the same."""
    is_gone = backend.is_gone
    is_usable = backend.healthy and not backend.is_draining and not is_gone
    is_ejected, models = backend.circuit.is_ejected and not is_gone, {} if is_gone else backend.models
    is_same = is_usable is was.is_usable and is_ejected is was.is_ejected and not is_gone
    if is_same and (models is was.models or models.keys() == was.models.keys()):
        return was
    return _Seen(backend.index, models, is_usable, is_ejected)


class _Tuples:
    """Tuples of backends made of others, each once: models that the same backends serve go on sharing theirs."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[tuple[Backend, ...], tuple[Backend, ...]]] = {}
        """By the identity of the first one, which is kept here so that no other one gets it."""

    def changed(self, before: tuple[Backend, ...], backend: Backend, *, is_in: bool) -> tuple[Backend, ...]:
        """Return `before` with `backend` or without it. For one backend only."""
        found = self._made.get(id(before))
        if found is None:
            at = bisect_left(before, backend.index, key=_index_of)
            rest = before[at:] if is_in else before[at + 1 :]
            found = self._made[id(before)] = before, (*before[:at], *((backend,) if is_in else ()), *rest)
        return found[1]

    def without_ejected(self, before: tuple[Backend, ...]) -> tuple[Backend, ...]:
        """Return those that are not ejected, or all of them if all are."""
        found = self._made.get(id(before))
        if found is None:
            kept = tuple(backend for backend in before if not backend.circuit.is_ejected) or before
            found = self._made[id(before)] = before, kept
        return found[1]


def _index_of(backend: Backend) -> int:
    return backend.index
