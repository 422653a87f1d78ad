"""What the parent leaves for its workers in a folder of its own, that nobody else may read: where its socket is, the secret of
the link, and the settings in force, written anew with each reload."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from maitred.core.errors import ConfigError
from maitred.gateway.admin.reload import GatewaySettings
from maitred.gateway.config import GatewayConfig
from maitred.wire.machine import Machine

SECRET_BYTES: Final = 32


class WorkerFolder:
    """The folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = str(path / "link")
        """The path of the parent's Unix socket."""
        self._written: dict[str, bytes] = {}

    def make_secret(self) -> None:
        """Draw a secret, and write it."""
        self._write("secret", Machine().random.randbytes(SECRET_BYTES))

    def secret(self) -> bytes:
        """Return the secret."""
        return (self.path / "secret").read_bytes()

    def write_settings(self, settings: GatewaySettings) -> None:
        """Write settings, in one step: a worker reads all of them or those before."""
        self._write("settings", pickle.dumps(settings))

    def settings(self) -> GatewaySettings:
        """Return the settings that were written last."""
        settings = pickle.loads((self.path / "settings").read_bytes())  # noqa: S301 - the parent's own, and nobody else writes here
        assert isinstance(settings, GatewaySettings)
        return settings

    def restore(self) -> None:
        """Write anew what this process has written and is gone: who clears old files away from the folder of temporary ones
        does not know that a worker may be started anew after weeks."""
        for name, content in self._written.items():
            if not (self.path / name).exists():
                self._write(name, content)

    def _write(self, name: str, content: bytes) -> None:
        self._written[name] = content
        written = self.path / f"{name}.new"
        written.touch(0o600)
        written.write_bytes(content)
        written.replace(self.path / name)


def check_body_shares(config: GatewayConfig, number: int) -> None:
    """Raise ConfigError if a worker could not keep the largest body that is allowed. A reload may change both limits."""
    if config.max_parked_body_bytes // number < config.max_body_bytes:
        problem = f"a share of 1/{number} of max_parked_body_bytes is less than max_body_bytes"
        hint = f"at least {number * config.max_body_bytes}, or fewer workers"
        raise ConfigError(problem, where="gateway.max_parked_body_bytes", hint=hint)


def share_of(settings: GatewaySettings, number: int) -> GatewaySettings:
    """Return the settings of one of so many workers: what limits a process is shared out among them, and the files that the
    parent writes are none of theirs."""
    config = settings.gateway
    upstream = replace(config.upstream, max_connections=max(1, config.upstream.max_connections // number))
    retry = replace(config.retry, budget_floor_per_sec=config.retry.budget_floor_per_sec / number)
    gateway = replace(
        config,
        decision_log=None,
        shadow=None,
        max_parked_body_bytes=config.max_parked_body_bytes // number,
        refusals_per_sec=-(-config.refusals_per_sec // number),
        upstream=upstream,
        retry=retry,
    )
    return replace(settings, gateway=gateway, shadow=None)
