"""The `scheduler` section of the configuration: how gateways and schedulers that are processes of their own find each other.

All of them may have the same file: a scheduler and a gateway each take what concerns them.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from maitred.admission.terms.config import MAX_SECS
from maitred.core.errors import quote
from maitred.scheduler.addresses import LinkAddress

_ANY_HOST: Final = ("0.0.0.0", "::")  # noqa: S104 - nothing is bound to them here
ELECTION_SCHEMES: Final = ("file:", "redis:", "rediss:", "redis+sentinel:", "redis+cluster:", "kubernetes:")


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The scheduler of several gateways. Raises ValueError for invalid values."""

    addresses: tuple[str, ...] = ()
    """Where gateways find the scheduler: `host:port`, `unix:/path`, several of them, of which one leads, or one URL as
    `election` has it. Empty: each gateway schedules for itself."""
    listen: str = "127.0.0.1:7070"
    """Address on which `maitred scheduler` takes gateways, as `host:port` or `unix:/path`; port 0 takes any free one."""
    advertise: str | None = None
    """Address under which gateways reach this scheduler, as others see it. Null: `listen`."""
    ext_proc: str | None = None
    """Address on which `maitred scheduler` answers Envoy as an endpoint picker, as `host:port`; port 0 takes any free one
    (docs/envoy.md). Null: it does not."""
    ext_proc_tls_cert: str | None = None
    """File with the certificate, in PEM, that is shown to Envoy there. Null: plain connections."""
    ext_proc_tls_key: str | None = None
    """File with the private key of `ext_proc_tls_cert`. Null: `ext_proc_tls_cert` holds it as well."""
    pages_host: str = "127.0.0.1"
    """Address on which `maitred scheduler`, and `maitred serve` with `data_plane: envoy`, serve their own pages (`/ready`,
    `/metrics`, `/maitred/state`)."""
    pages_port: int = 7071
    """Port of these pages; 0 takes any free one."""
    name: str | None = None
    """Name of this process on the pages and in the logs of others. Null: the name of the machine."""
    election: str | None = None
    """Where schedulers elect the one that leads: `redis://HOST:PORT`, `rediss://`, `redis+sentinel://HOST:PORT,HOST:PORT/NAME`,
    `redis+cluster://HOST:PORT`, `kubernetes:` or `kubernetes:NAMESPACE` (a Lease), or `file:/path` on one machine. Null: this
    scheduler is the only one."""
    election_name: str = "maitred"
    """Name under which the schedulers of one fleet of backends meet there."""
    lease_secs: float = 2.0
    """Seconds for which a leader may go on without an answer of the election, and after which another one may lead."""
    secret: str | None = None
    """The secret that gateways and schedulers share, of 16 characters at least. The environment is a better place than a file
    that others may read: MAITRED_SCHEDULER__SECRET. Null: `secret_file` has it."""
    secret_file: str | None = None
    """File with that secret; white space at its ends is left out. Null: `secret` has it."""
    tls_cert: str | None = None
    """File with the certificate, in PEM, that this process shows at its end of a link. Null: a scheduler speaks no TLS, and a
    gateway shows none."""
    tls_key: str | None = None
    """File with the private key of `tls_cert`. Null: `tls_cert` holds it as well."""
    tls_ca: str | None = None
    """File with the authorities, in PEM, that have signed the certificate of the other end. A scheduler with it takes only
    gateways that show such a certificate; a gateway with it speaks TLS. Null: neither."""
    degraded: Literal["wait", "closed", "share"] = "closed"
    """What a gateway does that has had no scheduler for `degraded_after_secs`. `wait`: its requests wait, as long as their
    class allows. `closed`: they are answered with 503. `share`: it grants its share of the slots by itself, as it was last
    told, by class and age among its own requests; while it is cut off from a scheduler that others reach, more may be in flight
    than there are slots."""
    degraded_after_secs: float = 10.0
    """Seconds without a scheduler after which `degraded` holds."""

    def __post_init__(self) -> None:
        for address in self.addresses:
            if not is_election(address):
                _check_address("addresses", address)
        if len(self.addresses) > 1 and any(map(is_election, self.addresses)):
            raise ValueError("addresses must be addresses, or one URL of an election")
        _check_address("listen", self.listen)
        self._check_ext_proc()
        if self.advertise is not None:
            _check_address("advertise", self.advertise)
        elif self.election is not None and LinkAddress.parse(self.listen).host in _ANY_HOST:
            raise ValueError(
                f"advertise is needed: gateways cannot reach {self.listen}, which means every address of this machine"
            )
        if self.election is not None and not is_election(self.election):
            raise ValueError(
                f"election must be a URL such as redis://10.0.0.9:6379 or file:/run/maitred, not {quote(self.election)}"
            )
        if not 0 <= self.pages_port <= 65_535:
            raise ValueError("pages_port must be from 0 to 65535")
        if not self.election_name.isprintable() or not self.election_name or set(self.election_name) & set("{} /"):
            raise ValueError("election_name must be a name without spaces, slashes and braces")
        if not 0.5 <= self.lease_secs <= MAX_SECS:
            raise ValueError("lease_secs must be at least 0.5")
        if not 0 < self.degraded_after_secs <= MAX_SECS:
            raise ValueError(f"degraded_after_secs must be more than 0, and at most {MAX_SECS:g}")
        if self.secret is not None and self.secret_file is not None:
            raise ValueError("secret and secret_file contradict each other (leave one of them out)")
        if self.tls_key is not None and self.tls_cert is None:
            raise ValueError("tls_key needs tls_cert")

    def _check_ext_proc(self) -> None:
        if self.ext_proc is not None:
            _check_address("ext_proc", self.ext_proc)
            if LinkAddress.parse(self.ext_proc).port is None:
                raise ValueError("ext_proc must be host:port, as in 0.0.0.0:9002")
        if self.ext_proc_tls_key is not None and self.ext_proc_tls_cert is None:
            raise ValueError("ext_proc_tls_key needs ext_proc_tls_cert")


def is_election(address: str) -> bool:
    """Return whether this names a place where schedulers elect a leader, and no scheduler."""
    return address.startswith(ELECTION_SCHEMES)


def _check_address(key: str, address: str) -> None:
    try:
        LinkAddress.parse(address)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def without_password(url: str) -> str:
    """Return an address or a URL as it may be printed."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
