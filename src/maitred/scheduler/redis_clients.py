"""Clients of Redis or Valkey by URL: one server, one behind Sentinel, or a cluster.

    redis://[:PASSWORD@]HOST:PORT[/DATABASE], rediss://
    redis+sentinel://[:PASSWORD@]HOST:PORT,HOST:PORT/NAME
    redis+cluster://[:PASSWORD@]HOST:PORT

Every call has a time limit, and is tried again by whoever asks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from maitred.core.errors import ConfigError, describe_os_error

_DATABASE: Final = re.compile("(/[0-9]*)?")
REDIS_SCHEMES: Final = ("redis:", "rediss:", "redis+sentinel:", "redis+cluster:")


class RedisClasses(msgspec.Struct, frozen=True):
    """The classes of redis-py, for an event loop or for threads."""

    server: Any
    cluster: Any
    sentinel: Any
    retry: Any


def for_event_loops() -> RedisClasses:
    """Return the classes of which every call is awaited. Raises ImportError."""
    from redis import asyncio as client
    from redis.asyncio.retry import Retry
    from redis.asyncio.sentinel import Sentinel

    return RedisClasses(client.Redis, client.RedisCluster, Sentinel, Retry)


def for_threads() -> RedisClasses:
    """Return the classes of which every call waits. Raises ImportError."""
    import redis
    from redis.retry import Retry
    from redis.sentinel import Sentinel

    return RedisClasses(redis.Redis, redis.RedisCluster, Sentinel, Retry)


def open_redis(url: str, classes: Callable[[], RedisClasses], timeout_secs: float) -> tuple[Any, str]:
    """Return a client for a URL, and its address without the password. Nothing is asked yet, but of a cluster for threads.
    Raises ConfigError for a URL that is none, and where redis-py is not installed."""
    parts = urlsplit(url)
    where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    try:
        from redis.backoff import NoBackoff

        made = classes()
    except ImportError as error:
        raise ConfigError(f"{where} needs redis-py, which is not installed", hint="pip install 'maitred[redis]'") from error
    limits: dict[str, Any] = {"socket_timeout": timeout_secs, "socket_connect_timeout": timeout_secs}
    limits["retry"] = made.retry(NoBackoff(), 1)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    login: dict[str, Any] = {"username": user or None, "password": password or None}
    try:
        if parts.scheme == "redis+sentinel":
            hosts = [_host_port(each, 26_379) for each in parts.netloc.rpartition("@")[2].split(",")]
            service = parts.path.strip("/") or "mymaster"
            sentinel = made.sentinel(hosts, sentinel_kwargs=limits, **limits, **login)
            return sentinel.master_for(service), f"{where}/{service}"
        if parts.scheme == "redis+cluster":
            host, port = _host_port(parts.netloc.rpartition("@")[2].split(",")[0], 6_379)
            return made.cluster(host=host, port=port, **limits, **login), where
        if not _DATABASE.fullmatch(parts.path):  # redis-py would take the first one.
            raise ValueError(f"{parts.path[1:]!r} is no number of a database")
        return made.server.from_url(url, **limits), where
    except ValueError as error:
        raise ConfigError(f"{where} is no URL of Redis: {error}", hint="redis://[:PASSWORD@]HOST:PORT[/DATABASE]") from error


def redis_errors() -> tuple[type[Exception], ...]:
    """Return the errors that a client's call raises if the store cannot be reached."""
    from redis.exceptions import RedisClusterException, RedisError

    return RedisError, RedisClusterException, OSError, TimeoutError


def words_of(where: str, error: Exception) -> str:
    """Return in words why a store could not be asked. `error` is one of `redis_errors`."""
    from redis.exceptions import AuthenticationError

    if isinstance(error, AuthenticationError):
        return f"the store at {where} refuses the password: {error}"
    cause: BaseException | None = error
    while cause is not None and not (isinstance(cause, OSError) and cause.strerror):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, OSError):  # redis-py says it in sentences of its own, with the address.
        return f"the store at {where} cannot be asked: {describe_os_error(cause)}"
    # Sentinel's words are followed by all that it knows of its clients.
    return f"the store at {where} cannot be asked: {str(error).partition(' : <')[0].strip(' .') or type(error).__name__}"


def _host_port(text: str, default: int) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    return (host.strip("[]"), int(port)) if colon and not text.endswith("]") else (text.strip("[]"), default)
