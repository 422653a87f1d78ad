"""TLS to upstreams: which certificates are trusted, and how a session is resumed.

The connections are those of `connection`, encrypted by the event loop. The certificate of an upstream must be valid for the
host of its URL, and signed by an authority that the system trusts, or one in the file that the environment names as
`SSL_CERT_FILE`. TLS 1.2 is the least.

**Resumption.** A full handshake costs each side a signature and a key exchange, most of a millisecond. A server therefore
sends tickets, with which the next connection to the same host goes on from the session of an earlier one. A server that knows a
ticket no more makes a full handshake, as without one.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from maitred.core.errors import ConfigError, describe_os_error
from maitred.files import check_file

AUTHORITIES_FILE: Final = "SSL_CERT_FILE"
"""The variable of the environment that names the file of trusted authorities."""


def trusting_context() -> ssl.SSLContext:
    """Return a context for connections to servers whose certificates the system trusts. Raises ConfigError if the environment
    names something other than a file of authorities: OpenSSL would read a pipe or a device for ever."""
    named = os.environ.get(AUTHORITIES_FILE)
    if named:
        try:
            check_file(Path(named))
        except OSError as error:
            problem, hint = f"{named} cannot be read: {describe_os_error(error)}", "a file of certificates in PEM"
            raise ConfigError(problem, where=AUTHORITIES_FILE, hint=hint) from error
    return ssl.create_default_context()


class ReloadedContext:
    """The context of one end, made of files, and made anew by each reload. Open connections keep theirs."""

    def __init__(self, make: Callable[[], ssl.SSLContext]) -> None:
        """`make` reads the files, and may raise ConfigError. Each context it makes asks the peer for a certificate, or none
        does: a handshake has begun before a server can choose."""
        self.make, self.first = make, make()
        """`make` is called again by a reload, in a thread. A server listens with `first`."""
        self.current = self.first
        """That of further connections."""

    def use(self, context: ssl.SSLContext) -> None:
        """Use this one for all further connections. Cannot fail."""
        self.current = context
        if self.first.protocol is ssl.PROTOCOL_TLS_SERVER:
            self.first.sni_callback = self._choose  # only now, because it costs each handshake a call

    def _choose(self, handshake: Any, _name: str | None, _first: ssl.SSLContext) -> None:
        handshake.context = self.current


class ClientContext:
    """What all connections of a client over TLS share: the trusted authorities, and the last session with each host."""

    def __init__(self) -> None:
        """Raises ConfigError as `trusting_context` does."""
        self.ssl = trusting_context()
        self.ssl.set_alpn_protocols(["http/1.1"])
        self.sessions: dict[str, ssl.SSLSession] = {}
        """The last session by the name of the host."""
        self.ssl.sslobject_class = _resuming_class(self.sessions)


class _ResumingObject(ssl.SSLObject):
    """The TLS of one connection; it goes on from the last session with its host."""

    sessions: dict[str, ssl.SSLSession]
    _has_begun = False

    def do_handshake(self) -> None:
        # The event loop knows nothing of sessions, so this is the only place at which one can be set.
        if not self._has_begun:  # It is called until the handshake is over, and then takes no session any more.
            self._has_begun = True
            session = self.sessions.get(self.server_hostname or "")
            if session is not None:
                self.session = session
        super().do_handshake()

    def keep_session(self) -> None:
        """Let further connections to this host go on from this session, if it has a ticket."""
        session = self.session
        if self.server_hostname and session is not None and session.has_ticket:
            self.sessions[self.server_hostname] = session


def _resuming_class(sessions: dict[str, ssl.SSLSession]) -> type[_ResumingObject]:
    """Return the class of the SSL objects of one context: a session must never be used with another one."""
    return type("ResumingObject", (_ResumingObject,), {"sessions": sessions})


def keep_session(transport: asyncio.Transport) -> None:
    """Keep the session of a connection on which a response has come, for further connections. Without TLS there is none."""
    tls: Any = transport.get_extra_info("ssl_object")
    if isinstance(tls, _ResumingObject):
        tls.keep_session()


def describe_failure(error: OSError) -> str:
    """Return in plain words why no connection could be made, with TLS or without."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS is agreed on: {(error.reason or str(error)).lower().replace('_', ' ')}"
    return describe_os_error(error) or "it was closed while TLS was being agreed on"  # as the event loop says it: without words
