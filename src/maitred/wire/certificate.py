"""TLS for clients: the certificate of a server, and how it is replaced while it serves.

A certificate is two files in PEM: the chain, the server's own first, and the private key. `read_certificate` reads each once,
in a thread of the reload, and loads them into an SSL context of their own, which is all that may fail: what was checked is what
is used, and the event loop waits for no disk.

    certbot writes new files; SIGHUP; `read_certificate` finds that they fit each other; `use`: the next handshake has them

The event loop keeps the context with which it began to listen. So a handshake begins in that one, and goes on in the context of
the files in force as soon as the client has said hello, where OpenSSL lets a server choose by name (SNI). Connections that are
open keep theirs. (Loading new files into the context that all connections share could fail half way, with the new chain and the
old key in it.) The session tickets are those of the first context, so that a reload ends no session.

TLS 1.2 is the least. A client must complete its handshake within `HANDSHAKE_SECS`. Everything behind the handshake is as on a
plain connection: the same code watches it (`protocol`), with buffers of the same size.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from maitred.core.errors import ConfigError, describe_os_error
from maitred.core.units import to_seconds
from maitred.files import MAX_TEXT_BYTES, read_file
from maitred.wire.certificate_dates import Validity, read_validities
from maitred.wire.clock import Clock

log = logging.getLogger("maitred.wire")
HANDSHAKE_SECS: Final = 20.0
"""Seconds that a handshake may take; the head of a request may take as long."""
CONFIRM_SECS: Final = 2.0
"""Seconds that a client may take to confirm the end of an idle connection; without TLS nothing has to be confirmed."""
FLUSH_SECS: Final = 3600.0
"""Seconds after which the event loop itself drops what a closed connection still has to send. `protocol` has stricter rules."""
BUFFER_BYTES: Final = 65_536
"""Bytes from which on a connection counts as full: those of a plain one. By default it would be up to eight times as many."""


class ServerCertificate:
    """The certificate of a server."""

    def __init__(self, chain: str, key: str, *, where: str, prefix: str = "", clock: Clock = Clock()) -> None:
        """The first arguments are those of `read_certificate`, which says what is raised. A certificate that is out of date by
        `clock` is told in the log, and used: some clients do not look."""
        self._clock = clock
        self.files = read_certificate(chain, key, where=where, prefix=prefix)
        """Those in force."""
        self.context = self.files.context
        """The context that connections are made with."""
        self._log_date_problems()

    def use(self, files: CertificateFiles) -> None:
        """Use these files for all further connections. Cannot fail."""
        self.files = files
        self._log_date_problems()
        self.context.sni_callback = self._choose_context  # Only now, because it costs each handshake a call.

    def _choose_context(self, handshake: Any, _name: str | None, _first: ssl.SSLContext) -> None:
        handshake.context = self.files.context

    def _log_date_problems(self) -> None:
        now = datetime.fromtimestamp(to_seconds(self._clock.wall()), UTC)
        for problem in self.files.date_problems(now):
            log.error("TLS: %s", problem)


class CertificateFiles(NamedTuple):
    """The files of a certificate, as they have been read."""

    context: ssl.SSLContext
    """The context into which they have been loaded."""
    validities: Sequence[Validity | None]
    """Those of the chain; None: not known."""
    chain: bytes
    key: bytes

    def date_problems(self, now: datetime) -> Iterator[str]:
        """Yield why certificates of the chain are not valid at `now`: clients that look refuse the connection then."""
        for number, validity in enumerate(self.validities, 1):
            problem = None if validity is None else validity.problem(now)
            if problem is not None:
                yield f"{'the certificate' if number == 1 else f'certificate {number} of the chain'} {problem}"


def read_certificate(
    chain: str, key: str, *, where: str, prefix: str = "", context: ssl.SSLContext | None = None
) -> CertificateFiles:
    """Read the files of a certificate and of its key, in PEM, and check that they can be used. `where` is the section of the
    configuration whose keys `tls_cert` and `tls_key` name them, with `prefix` before their names. They are loaded into
    `context`, None: one of a server. Raises ConfigError for files that are none, or do not fit each other."""
    cert_name, key_name = f"{where}.{prefix}tls_cert", f"{where}.{prefix}tls_key"
    read_chain, read_key = _read(chain, cert_name), _read(key, key_name)
    context = context or _new_context()
    try:
        # From files in memory: OpenSSL takes paths only.
        with _as_file(read_chain) as chain_file, _as_file(read_key) as key_file:
            context.load_cert_chain(chain_file, key_file, password=_no_password)
    except _EncryptedKey:
        hint = "give a key without a password, readable by the gateway alone"
        raise ConfigError(f"the key in {key} is encrypted", where=key_name, hint=hint) from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = f"the key in {key} is not that of the certificate in {chain}"
            raise ConfigError(problem, where=key_name) from error
        for path, read, name, kind in (
            (chain, read_chain, cert_name, b"CERTIFICATE"),
            (key, read_key, key_name, b"PRIVATE KEY"),
        ):
            if kind + b"-----" not in read:
                problem = f"{path} holds no {kind.decode().lower()} in PEM"
                raise ConfigError(problem, where=name) from error
        hint = "a certificate with its chain and a private key, both in PEM"
        raise ConfigError(f"{chain} and {key} cannot be used: {error.reason or error}", where=where, hint=hint) from error
    except OSError as error:  # no descriptor is left, say
        raise ConfigError(f"{chain} and {key} cannot be loaded: {describe_os_error(error)}", where=where) from error
    return CertificateFiles(context, list(read_validities(read_chain)), read_chain, read_key)


def _read(path: str, where: str) -> bytes:
    try:
        return read_file(Path(path), MAX_TEXT_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {describe_os_error(error)}", where=where) from error


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Yield the path of a file with this content, for this process alone."""
    if not hasattr(os, "memfd_create"):  # not Linux
        with tempfile.NamedTemporaryFile() as stored:
            stored.write(content)
            stored.flush()
            yield stored.name
        return
    with FileIO(os.memfd_create("certificate"), "w") as memory:
        memory.write(content)
        yield f"/proc/self/fd/{memory.fileno()}"


def limit_buffers(transport: asyncio.Transport) -> None:
    """Let a transport over TLS keep no more in memory than a plain one."""
    if _is_tls(transport):
        transport.set_write_buffer_limits(high=BUFFER_BYTES)
        cast(Any, transport).set_read_buffer_limits(high=BUFFER_BYTES)  # uvloop and asyncio have it, and do not say so


def end_sending(transport: asyncio.Transport) -> None:
    """Tell the peer that there is no more, as far as that can be told: over TLS, only closing does."""
    if transport.can_write_eof():
        transport.write_eof()


def close_transport(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
    """Close a connection. What it still has to send is sent first; if there is nothing, the peer gets `CONFIRM_SECS`."""
    has_unsent = transport.get_write_buffer_size() > 0
    if not transport.is_closing():  # The transport of asyncio over TLS that is closed twice answers nothing more.
        transport.close()
    if not has_unsent and _is_tls(transport):
        loop.call_later(CONFIRM_SECS, transport.abort)


def _is_tls(transport: asyncio.Transport) -> bool:
    return transport.get_extra_info("ssl_object") is not None


class _EncryptedKey(Exception):  # noqa: N818  (caught above)
    """A key asks for a password."""


def _no_password() -> bytes:
    # OpenSSL would ask for it on the terminal.
    raise _EncryptedKey


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
