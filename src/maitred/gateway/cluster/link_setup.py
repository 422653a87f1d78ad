"""What both ends of a link take from the configuration: the secret, the contexts of TLS, the election, and their name.

All is read at the start, and the files of TLS and of the secret again by each reload.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from maitred.core.errors import ConfigError, describe_os_error
from maitred.files import MAX_TEXT_BYTES, read_file
from maitred.scheduler.interface import Dialer, ElectedAddresses, KnownAddresses, LinkAddress, open_election
from maitred.scheduler.link_config import SchedulerConfig, is_election
from maitred.wire.certificate import read_certificate
from maitred.wire.tls import ReloadedContext

_LEAST_SECRET: Final = 16


def link_secret(config: SchedulerConfig) -> bytes:
    """Return the secret of the link. Raises ConfigError if there is none, or one that is short enough to be guessed."""
    where, secret = "scheduler.secret", (config.secret or "").encode()
    if config.secret_file is not None:
        where, secret = "scheduler.secret_file", _read(config.secret_file, "scheduler.secret_file").strip()
    elif config.secret is None:
        hint = "head -c 24 /dev/urandom | base64 > link.secret, and --link-secret-file link.secret at both ends"
        raise ConfigError("gateways and schedulers need a secret that they share", where=where, hint=hint)
    if len(secret) < _LEAST_SECRET:
        problem = f"the secret has {len(secret)} characters"
        raise ConfigError(problem, where=where, hint=f"{_LEAST_SECRET} at least, drawn at random")
    return secret


class ReloadedSecret:
    """The secret of a link, read again from its file by each reload. Links that are open go on."""

    def __init__(self, config: SchedulerConfig, use: Callable[[bytes], None]) -> None:
        """`use` is given each secret that was read, to prove further links by."""
        self.make, self.use = partial(link_secret, config), use


def reloaded_secret(config: SchedulerConfig, use: Callable[[bytes], None]) -> ReloadedSecret | None:
    """Return what reads the secret again, or None if it is in no file of its own."""
    return None if config.secret_file is None else ReloadedSecret(config, use)


def link_name(config: SchedulerConfig) -> str:
    """Return the name of this process in the logs of others."""
    return config.name or socket.gethostname()


def listening_context(config: SchedulerConfig) -> ReloadedContext | None:
    """Return the context with which a scheduler takes gateways, or None for plain connections. Raises ConfigError for files
    that cannot be used."""
    if config.tls_cert is not None:
        return ReloadedContext(partial(_make_listening, config, config.tls_cert))
    if config.tls_ca is not None:
        raise ConfigError("a scheduler with tls_ca needs a certificate of its own", where="scheduler.tls_cert")
    return None


def _make_listening(config: SchedulerConfig, certificate: str) -> ssl.SSLContext:
    context = read_certificate(certificate, config.tls_key or certificate, where="scheduler").context
    if config.tls_ca is not None:
        _trust(context, config.tls_ca)
        context.verify_mode = ssl.CERT_REQUIRED
        # A session that goes on is not verified again: an authority that a reload takes away would still let its gateways in.
        context.minimum_version, context.num_tickets = ssl.TLSVersion.TLSv1_3, 0
    return context


def connecting_context(config: SchedulerConfig) -> ReloadedContext | None:
    """Return the context with which a gateway connects, or None for plain connections. Raises ConfigError for files that cannot
    be used."""
    if config.tls_ca is not None:
        return ReloadedContext(partial(_make_connecting, config, config.tls_ca))
    if config.tls_cert is not None:
        hint = "the file of the authority that has signed the certificate of the scheduler"
        raise ConfigError("a gateway with a certificate needs tls_ca", where="scheduler.tls_ca", hint=hint)
    return None


def _make_connecting(config: SchedulerConfig, authorities: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _trust(context, authorities)
    if config.tls_cert is not None:
        read_certificate(config.tls_cert, config.tls_key or config.tls_cert, where="scheduler", context=context)
    return context


def make_dialer(config: SchedulerConfig, random: Random) -> Dialer:
    """Build the dialer by which a gateway reaches the scheduler that leads. Raises ConfigError."""
    tls = connecting_context(config)
    if len(config.addresses) == 1 and is_election(config.addresses[0]):
        return Dialer(ElectedAddresses(open_election(config.addresses[0], config, random)), tls)
    return Dialer(KnownAddresses(*map(LinkAddress.parse, config.addresses)), tls)


def link_problems(config: SchedulerConfig) -> Iterator[ConfigError]:
    """Yield what keeps the schedulers and the gateways of a set-up from finding each other, as far as its files say it."""
    parts: list[Callable[[], object]] = [partial(link_secret, config), partial(_open_elections, config)]
    if config.tls_cert is not None:
        parts.append(partial(listening_context, config))
    if config.tls_ca is not None:
        parts.append(partial(connecting_context, config))
    for part in parts:
        try:
            part()
        except ConfigError as error:
            yield error


def _open_elections(config: SchedulerConfig) -> None:
    for url in (config.election, *filter(is_election, config.addresses)):
        open_election(url, config, Random())


def _trust(context: ssl.SSLContext, path: str) -> None:
    text = _read(path, "scheduler.tls_ca")
    try:
        context.load_verify_locations(cadata=text.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError) as error:
        hint = "certificates of authorities in PEM"
        raise ConfigError(f"{path} holds no certificate", where="scheduler.tls_ca", hint=hint) from error


def _read(path: str, where: str) -> bytes:
    try:
        return read_file(Path(path), MAX_TEXT_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {describe_os_error(error)}", where=where) from error
