"""The certificates of the ports of a gateway: which files each has, read at the start and again by each reload.

    port          `tls_cert`, `tls_key`
    admin_port    `admin_tls_cert`, `admin_tls_key`; else those of `port`, unless `admin_tls: none`
    links         of the section `scheduler`: at either end of the link `tls_cert`, `tls_key`, `tls_ca`, and `secret_file`; for
                  Envoy `ext_proc_tls_cert`, `ext_proc_tls_key`

A reload reads all of them before it changes any: what does not fit leaves every port as it was. Whether a port speaks TLS at
all is settled at the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from maitred.core.errors import ConfigError
from maitred.gateway.config import GatewayConfig
from maitred.wire.certificate import CertificateFiles, ServerCertificate, read_certificate
from maitred.wire.clock import Clock
from maitred.wire.origin import Origin
from maitred.wire.tls import trusting_context


class PortFiles(NamedTuple):
    """What was read for each port; None for one without TLS."""

    port: CertificateFiles | None
    admin_port: CertificateFiles | None
    links: Sequence[Any]
    """What each part of links has made."""


class LinkPart(Protocol):
    """What a link to other processes takes from files: the context of TLS, or the secret."""

    @property
    def make(self) -> Callable[[], Any]:
        """Read the files again, in a thread, and return what `use` takes. Raises ConfigError."""
        ...

    def use(self, made: Any, /) -> None:
        """Use this for all further connections. Cannot fail."""
        ...


class PortCertificates:
    """The certificates of one gateway."""

    def __init__(self, config: GatewayConfig, clock: Clock) -> None:
        """Raises ConfigError for files that cannot be used."""
        files, admin_files = config.tls_files, config.admin_tls_files
        self.port = None if files is None else ServerCertificate(*files, where="gateway", clock=clock)
        """That of `port`, or None for plain HTTP."""
        self.admin_port = None if admin_files is None else ServerCertificate(*admin_files, clock=clock, **_admin_keys(config))
        """That of `admin_port`, or None for plain HTTP, or if there is no such port."""
        self._links: list[LinkPart] = []

    def add_link(self, part: LinkPart | None) -> None:
        """Have reloads read a part of a link again; None: it is in no file."""
        if part is not None:
            self._links.append(part)

    def read(self, config: GatewayConfig, in_force: GatewayConfig) -> PortFiles:
        """Return the files that `config` names for the ports that speak TLS, or those of `in_force` where it names none. To be
        called in a thread. Raises ConfigError."""
        files = config.tls_files or in_force.tls_files
        admin_files = config.admin_tls_files or in_force.admin_tls_files
        return PortFiles(
            None if self.port is None or files is None else read_certificate(*files, where="gateway"),
            None if self.admin_port is None or admin_files is None else read_certificate(*admin_files, **_admin_keys(config)),
            [link.make() for link in self._links],
        )

    def use(self, files: PortFiles) -> None:
        """Use these files for all further connections. Cannot fail."""
        for certificate, read in ((self.port, files.port), (self.admin_port, files.admin_port)):
            if certificate is not None and read is not None:
                certificate.use(read)
        for link, made in zip(self._links, files.links, strict=True):
            link.use(made)


def certificate_problems(config: GatewayConfig, now: datetime) -> Iterator[ConfigError]:
    """Yield what is wrong with the files: what keeps a gateway from starting, and dates that clients refuse. The authorities
    that sign the certificates of backends are among them."""
    if any(Origin.parse(url, where="--backend").tls for url in config.backends):
        try:
            trusting_context()
        except ConfigError as error:
            yield error
    ports: dict[str, tuple[tuple[str, str] | None, dict[str, Any]]] = {"": (config.tls_files, {"where": "gateway"})}
    if config.admin_tls_cert is not None:  # Otherwise they are those of `port`.
        ports["admin_"] = (config.admin_tls_files, _admin_keys(config))
    for prefix, (files, keys) in ports.items():
        if files is None:
            continue
        try:
            problems = list(read_certificate(*files, **keys).date_problems(now))
        except ConfigError as error:
            yield error
            continue
        for problem in problems:
            hint = "name a certificate that is valid now"
            yield ConfigError(f"{files[0]}: {problem}", where=f"gateway.{prefix}tls_cert", hint=hint)


def _admin_keys(config: GatewayConfig) -> dict[str, Any]:
    """Return which keys name the certificate of `admin_port`, for errors."""
    return {"where": "gateway", "prefix": "" if config.admin_tls_cert is None else "admin_"}
