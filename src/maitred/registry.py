"""Policies by the name that users type.

A policy is registered by a decorator in its own file; others install theirs under an entry-point group
(`maitred.schedulers`, `maitred.routers`, ...) or are named as `package.module:Class`. All are found by the same `get`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from maitred.errors import ConfigError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """Names to policy classes (or factories) of one kind. `methods`: what a class named by its path must have."""

    def __init__(self, kind: str, *, group: str, methods: Sequence[str] = ()) -> None:
        self.kind = kind
        self.group = group
        self.methods = methods
        self._known: dict[str, Callable[..., T]] = {}

    def register(self, name: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
        """Decorator: make a class known as `name`. Raises ValueError if the name is taken."""

        def add(factory: Callable[..., T]) -> Callable[..., T]:
            if name in self._known:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._known[name] = factory
            return factory

        return add

    def get(self, name: str) -> Callable[..., T]:
        """The class or factory called `name`. Raises ConfigError with the nearest valid name."""
        if name in self._known:
            return self._known[name]
        if ":" in name:
            return self._by_path(name)
        for point in entry_points(group=self.group):
            if point.name == name:
                loaded: Callable[..., T] = point.load()
                return loaded
        raise ConfigError(f"unknown {self.kind} {name!r}", hint=nearest(name, self))

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._known, *(point.name for point in entry_points(group=self.group))}))

    def __contains__(self, name: object) -> bool:
        return name in set(self)

    def _by_path(self, path: str) -> Callable[..., T]:
        module, _, attribute = path.partition(":")
        try:
            found: Callable[..., T] = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            hint = "write it as package.module:Class, importable from here"
            raise ConfigError(f"cannot load {self.kind} {path!r}: {error}", hint=hint) from error
        missing = [method for method in self.methods if not callable(getattr(found, method, None))]
        if missing or not isinstance(found, type):
            hint = f"a class with {' and '.join(f'{method}()' for method in self.methods)}" if self.methods else "a class"
            raise ConfigError(f"{path!r} is no {self.kind}", hint=hint)
        return found
