"""Which election a URL means."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from maitred.core.errors import ConfigError
from maitred.core.units import from_seconds
from maitred.scheduler.kube_clients import open_kube, require_lightkube
from maitred.scheduler.link_config import SchedulerConfig
from maitred.scheduler.redis_clients import for_event_loops, open_redis
from maitred.scheduler.sharing.elections.election import Election, SoleScheduler
from maitred.scheduler.sharing.elections.file_election import FileElection
from maitred.scheduler.sharing.elections.kube_election import KubeElection
from maitred.scheduler.sharing.elections.redis_election import RedisElection
from maitred.wire.clock import Clock

_TIMEOUT_SECS: Final = 1.0
"""How long a store may take to answer."""


def open_election(url: str | None, config: SchedulerConfig, random: Random, clock: Clock | None = None) -> Election:
    """Return the election at `url`, or that of a scheduler without another. `clock` is that of this process; None: the
    system's. Nothing is asked yet. Raises ConfigError."""
    if url is None:
        return SoleScheduler()
    if url.startswith("file:"):
        path = Path(url.removeprefix("file:").removeprefix("//"))
        if not path.parent.is_dir():
            raise ConfigError(f"the folder {path.parent} does not exist", where="scheduler.election", hint="file:/run/maitred")
        return FileElection(path)
    if url.startswith("kubernetes:"):
        require_lightkube()
        opened = partial(open_kube, timeout_secs=_TIMEOUT_SECS)
        namespace, lease = url.removeprefix("kubernetes:").strip("/"), from_seconds(config.lease_secs)
        return KubeElection(opened, namespace, config.election_name, lease, lambda: random.randbytes(8).hex(), clock or Clock())
    client, where = open_redis(url, for_event_loops, _TIMEOUT_SECS)
    lease = from_seconds(config.lease_secs)
    return RedisElection(client, where, config.election_name, lease, lambda: random.randbytes(8).hex())
