"""LocalAccess: whether a request without a key may do what only an operator may, because it comes from this machine.

An address of this machine is not enough. A browser on it runs pages of any origin, and the connections that they make come
from here as well. Two tricks let such a page use `/admin/*`:

    DNS rebinding    evil.example resolves to 127.0.0.1 on the second look. The page asks http://evil.example:8080, and the
                     browser takes the answer for one of evil.example: the page reads it. But Host says evil.example.
    a plain POST     to http://127.0.0.1:8080/admin/reload. The page cannot read the answer, but the request is carried out.
                     But Origin says https://evil.example.
    an image         <img src="http://127.0.0.1:8080/flush_cache">. A browser sends no Origin with it. But Sec-Fetch-Site says
                     cross-site, and from a browser that does not know this header, Referer says https://evil.example.

So `Host` must be an IP address (which no name server can redirect), `localhost`, or a name that the configuration has
(`gateway.host`, `gateway.admin_hosts`); and `Origin`, `Referer` and `Sec-Fetch-Site`, where they are, must say that the page
itself asks. Command-line clients send none of them, and a `Host` that says what they were told.

    Host: 127.0.0.1:8080                                       allowed
    Host: localhost:8080, Origin: http://localhost:8080        allowed
    Host: localhost:8080, Origin: http://localhost:3000        refused
    Host: gateway.example:8080                                 refused, unless admin_hosts has gateway.example

With keys none of this is asked: no browser adds an `Authorization: Bearer` of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from maitred.wire.exchange import ClientAddress
from maitred.wire.messages import Headers

_MAX_ADDRESS_CHARS: Final = 128


class LocalAccess:
    """Which requests are an operator's while no keys are configured."""

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        """`hosts` are names that may stand in `Host`, beside addresses and localhost."""
        self._hosts = frozenset(host.lower() for host in hosts)

    def page_problem(self, headers: Headers) -> str | None:
        """Return why a page in a browser may have sent a request with these headers against the will of its user; or None."""
        named = [value.decode("latin-1").strip().lower() for name, value in headers if name == b"host"]
        if not all(self._is_known(host) for host in named):
            return "without an api_key this is allowed under an IP address, localhost or a name in admin_hosts only"
        own = {f"{scheme}://{host}" for scheme in ("http", "https") for host in named}
        if not own.issuperset(_asking_origins(headers)):
            return "without an api_key this is not allowed to pages of another origin"
        return None

    def _is_known(self, authority: str) -> bool:
        host = _host_of(authority)
        return host == "localhost" or host.endswith(".localhost") or host in self._hosts or _is_address(host)


def _asking_origins(headers: Headers) -> Iterator[str]:
    """Yield what a browser says of the page that asks: its origin, or `cross-site` and the like."""
    for name, value in headers:
        text = value.decode("latin-1").strip().lower()
        if name == b"origin":
            yield text
        elif name == b"referer":
            scheme, _, rest = text.partition("://")
            yield f"{scheme}://{rest.partition('/')[0]}"
        elif name == b"sec-fetch-site" and text not in ("same-origin", "none"):
            yield text


def _host_of(authority: str) -> str:
    """Return the host in `host:port`; an IPv6 address without its brackets."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def _is_address(host: str) -> bool:
    return len(host) <= _MAX_ADDRESS_CHARS and _address(host) is not None


def address_problem(peer: ClientAddress) -> str | None:
    """Return why a request over the connection from `peer`, or from nowhere, may not do what an operator may; or None."""
    if peer is not None and _is_loopback_address(peer[0]):
        return None
    return "without an api_key this is allowed from the gateway's own machine only"


@lru_cache(256)
def _is_loopback_address(text: str) -> bool:
    address = _address(text)
    return address is not None and address.is_loopback


@lru_cache(256)
def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Return an address, or None for what is none. The same few are asked for by every probe."""
    try:
        return ip_address(text)
    except ValueError:
        return None
