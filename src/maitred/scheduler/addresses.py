"""The address of a scheduler, as users write it: `host:port`, `[IPv6]:port`, or `unix:/path` of a Unix socket."""

from __future__ import annotations

from typing import NamedTuple

from maitred.core.errors import quote


class LinkAddress(NamedTuple):
    """Where a scheduler listens for its gateways."""

    host: str
    """A name or an address; for a Unix socket its path."""
    port: int | None
    """None: a Unix socket."""

    def __str__(self) -> str:
        if self.port is None:
            return f"unix:{self.host}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @staticmethod
    def parse(text: str) -> LinkAddress:
        """Return the address that `text` names. Raises ValueError for what names none."""
        if text.startswith("unix:") and text.removeprefix("unix:"):
            return LinkAddress(text.removeprefix("unix:"), None)
        host, colon, port = text.rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        is_bare_v6 = ":" in host and not text.startswith("[")
        if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65_535) or is_bare_v6 or "/" in host:
            raise ValueError(f"{quote(text)} is no address of a scheduler (as in 10.0.0.5:7070, or unix:/run/maitred)")
        return LinkAddress(host, int(port))
