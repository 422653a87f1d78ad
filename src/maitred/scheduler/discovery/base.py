"""Sources of backends: the kind of plug-in, and what a source is given while it runs.

A source says what it lists, whenever it has looked (`Told.listed`), or why it cannot (`Told.failed`). It decides nothing: what
becomes of backends that it lists no more is the matter of `backend_set`. A source that returns or raises is started anew after
a while, so it may simply raise where it does not know what to do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Protocol

import msgspec

from maitred.core.errors import ConfigError, MaitredError
from maitred.core.registry import Registry
from maitred.wire.machine import Machine
from maitred.wire.origin import Origin

MAX_BACKENDS: Final = 4_096
"""Backends that one source may list. A list of more is a slip, and would fill the memory."""


class SourceError(MaitredError):
    """A source cannot say what it lists, with words for the log."""


class SourceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a user must know to choose a source; each class carries one as `about`."""

    summary: str
    """What it lists, in one line without a full stop."""
    looks: str
    """When it looks."""


class SourceListener(Protocol):
    """What a source tells, and where it runs."""

    machine: Machine
    """The clock and the name service."""
    wants_objectives: bool
    """Whether anything goes by objectives, so that a source which knows of them says so (`objectives`)."""

    def listed(self, urls: Collection[str]) -> None:
        """Tell that these are all backends that the source lists now, as `http://host:port`. Raises SourceError for what is no
        such URL, and for too many; then nothing is taken over."""
        ...

    def failed(self, problem: str) -> None:
        """Tell why the source cannot say what it lists."""
        ...

    def objectives(self, priorities: Mapping[str, int]) -> None:
        """Tell that these are all objectives of requests that the source knows, with their priorities."""
        ...

    def objectives_failed(self, problem: str) -> None:
        """Tell why the source cannot say which objectives there are. Its backends are not concerned."""
        ...


class BackendSource(Protocol):
    """Finds backends."""

    async def run(self, told: SourceListener) -> None:
        """Look for backends until this is cancelled, and tell what is found. What is raised counts as a failure."""
        ...


SOURCES: Registry[BackendSource] = Registry(
    "source of backends",
    BackendSource,
    group="maitred.sources",
    packages=["maitred.scheduler.discovery"],
    methods=["run"],
    flag="--discover",
    headings={"summary": "lists", "looks": "looks"},
)


def checked_urls(urls: Collection[str]) -> list[str]:
    """Return the URLs as backends are called, each once. Raises SourceError for one that is no `http://host:port`."""
    if len(urls) > MAX_BACKENDS:
        raise SourceError(f"{len(urls):,} backends are listed, and {MAX_BACKENDS:,} are the most")
    try:
        return [*dict.fromkeys(str(Origin.parse(url)) for url in urls)]
    except ConfigError as error:
        raise SourceError(str(error)) from error


def url_of(host: str, port: int | None = None, scheme: str = "http") -> str:
    """Return the URL of a backend; `port` is None if `host` has one."""
    if port is None:
        return f"{scheme}://{host}"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def check_scheme(scheme: str) -> None:
    """Raise ValueError for a scheme that backends do not speak."""
    if scheme not in ("http", "https"):
        raise ValueError(f"scheme must be http or https, not {scheme!r}")


def check_secs(name: str, value: float) -> None:
    """Raise ValueError for a time that is none."""
    if not 0 < value <= 86_400:
        raise ValueError(f"{name} must be more than 0, and at most 86,400 seconds")
