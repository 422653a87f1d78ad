"""JwtKeys: JSON Web Tokens (RFC 7519) as keys, checked by the public keys of their issuer (JWKS, RFC 7517).

    signature   by the key of the set that the token names (`kid`), with an algorithm of the list
    exp         must be there, and not be over; nbf must have come; `leeway_secs` are forgiven
    iss, aud    as configured
    tenant      `auth:` and the value of a claim; the class is that of another claim, if one is configured

The set is read at the start, every `refresh_secs`, and soon after a token has named a key that is not in it: issuers change
their keys. That happens beside the requests, and none waits for it: while a token may be signed by a key that is still to come,
it is answered 503, to be tried again in a second. A set that cannot be read leaves the one before it in force.

What was found to be valid is kept, by the hash of the token, until it expires or the set changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import jwt
import msgspec
from jwt.types import Options

from maitred.admission import parse_class
from maitred.admission.terms.tenants import KEY_TENANT_PREFIX
from maitred.core.errors import JSON_ERRORS, ConfigError, describe_os_error
from maitred.core.units import Micros, from_seconds
from maitred.files import read_file
from maitred.files.daemon_threads import DAEMON_THREADS
from maitred.gateway import error_responses
from maitred.gateway.access.auth import Caller, KeyRights
from maitred.gateway.bodies.request_fields import shorten_name
from maitred.gateway.config import JwtConfig
from maitred.wire.clock import Clock
from maitred.wire.origin import Origin

Fetch = Callable[[Origin, str], Awaitable[bytes]]
"""Returns what a GET at an origin and a path answers with status 200. Raises Exception for anything else."""
WHERE: Final = "gateway.jwt.jwks"
FETCH_SECS: Final = 10.0
LEAST_PAUSE_SECS: Final = 10.0
"""Seconds between two reads that unknown keys ask for."""
MAX_SET_BYTES: Final = 1 << 20
_MAX_TOKEN_BYTES: Final = 16_384
_MAX_KNOWN: Final = 10_000
_DOTS: Final = 2


class JwtKeys:
    """The tokens of one issuer (a `CallerSource`)."""

    name = "the JWKS"

    def __init__(self, config: JwtConfig, clock: Clock, fetch: Fetch) -> None:
        """Raises ConfigError for a file that cannot be used. A URL is read later."""
        self._config, self._clock, self._fetch = config, clock, fetch
        self._keys: Mapping[str | None, jwt.PyJWK] = {}
        self._is_known = False
        """Whether a set has been read."""
        self._known: dict[bytes, tuple[Caller, Micros]] = {}
        """Tokens that are valid: whose they are, and until when, µs since 1970."""
        self._read_at: Micros | None = None
        self._is_wanted = asyncio.Event()
        """Set when a token has named a key that is not in the set."""
        self._options: Options = {
            "verify_exp": False,
            "verify_nbf": False,
            "verify_iat": False,  # by the gateway's own clock
            "require": ["exp"],
            "verify_aud": config.audience is not None,
        }
        self._leeway = from_seconds(config.leeway_secs)
        url = urlsplit(config.jwks)
        self._origin, self._path = None, config.jwks
        if url.scheme in ("http", "https"):
            self._origin = Origin.parse(f"{url.scheme}://{url.netloc}", where=WHERE)
            self._path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        else:
            self._use(parse_set(self._read_file()))

    def find(self, key: bytes, digest: bytes) -> Caller | None:
        """Return whose token this is, or None if it is none. Raises ApiError 401 for one that is not valid, and 503 while its
        key may be still to come."""
        if key.count(b".") != _DOTS or len(key) > _MAX_TOKEN_BYTES:
            return None
        now = self._clock.wall()
        known = self._known.get(digest)
        if known is None:
            known = self._verify(key)
            if len(self._known) >= _MAX_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[digest] = known
        if now >= known[1] + self._leeway:
            raise error_responses.invalid_token("it has expired")
        return known[0]

    def _verify(self, token: bytes) -> tuple[Caller, Micros]:
        config = self._config
        try:
            head = jwt.get_unverified_header(token)
            if head.get("alg") not in config.algorithms:
                raise error_responses.invalid_token("its algorithm is not allowed")
            claims = jwt.decode(
                token,
                self._key(head.get("kid")),
                algorithms=list(config.algorithms),
                audience=config.audience,
                issuer=config.issuer,
                options=self._options,
            )
        except jwt.PyJWTError as error:
            raise error_responses.invalid_token(_words(error)) from None
        except (ValueError, TypeError):  # of claims of another type
            raise error_responses.invalid_token("it cannot be read") from None
        begins, ends = claims.get("nbf", 0), claims["exp"]
        if not all(isinstance(at, int | float) and abs(at) < 1e11 for at in (begins, ends)):
            raise error_responses.invalid_token("its exp or nbf is no time")
        if from_seconds(max(0.0, begins)) > self._clock.wall() + self._leeway:
            raise error_responses.invalid_token("it is not valid yet")
        return self._caller(claims), from_seconds(max(0.0, ends))

    def _key(self, name: Any) -> jwt.PyJWK:
        """Return the key that a token names; one that names none has that of a set with one key."""
        found = self._keys.get(name) if isinstance(name, str) else None
        if name is None and len(self._keys) == 1:
            found = next(iter(self._keys.values()))
        if found is not None:
            return found
        if self._may_come():
            self._is_wanted.set()
            raise error_responses.keys_to_come()
        raise error_responses.invalid_token("no key of its issuer fits")

    def _may_come(self) -> bool:
        return (
            not self._is_known or self._read_at is None or self._clock.now() - self._read_at >= from_seconds(LEAST_PAUSE_SECS)
        )

    def _caller(self, claims: dict[str, Any]) -> Caller:
        config = self._config
        tenant = claims.get(config.tenant_claim)
        if not isinstance(tenant, str) or not tenant.strip():
            raise error_responses.invalid_token(f"its claim {config.tenant_claim} names no tenant")
        label = None if config.class_claim is None else claims.get(config.class_claim)
        cap = parse_class(label) if isinstance(label, str) and label.strip() else None
        return Caller(f"{KEY_TENANT_PREFIX}{shorten_name(tenant.strip())}", KeyRights.TENANT, cap)

    @property
    def is_local(self) -> bool:
        """Whether the set is a file."""
        return self._origin is None

    @property
    def needs_tls(self) -> bool:
        """Whether the set is read over TLS."""
        return self._origin is not None and self._origin.tls

    async def pause(self) -> None:
        """Return when the set should be read again."""
        if self._is_known or self._read_at is not None:
            pause = self._config.refresh_secs if self._is_known else LEAST_PAUSE_SECS
            try:
                async with asyncio.timeout(pause):
                    await self._is_wanted.wait()
            except TimeoutError:
                pass
        self._is_wanted.clear()

    async def refresh(self) -> bool:
        """Read the set again, and return whether it is another one. Raises ConfigError, and changes nothing then."""
        try:
            async with asyncio.timeout(FETCH_SECS):
                content = await self._content()
        except ConfigError:
            raise
        except TimeoutError:
            raise ConfigError(f"no answer within {FETCH_SECS:g} s", where=WHERE) from None
        except Exception as error:  # a server may answer anything
            raise ConfigError(str(error) or repr(error), where=WHERE) from error
        finally:
            self._read_at = self._clock.now()
        return self._use(parse_set(content))

    async def _content(self) -> bytes:
        if self._origin is not None:
            return await self._fetch(self._origin, self._path)
        return await asyncio.get_running_loop().run_in_executor(DAEMON_THREADS, self._read_file)

    def _read_file(self) -> bytes:
        try:
            return read_file(Path(self._path), MAX_SET_BYTES)
        except OSError as error:
            raise ConfigError(f"cannot read {self._path}: {describe_os_error(error)}", where=WHERE) from error

    def _use(self, keys: Mapping[str | None, jwt.PyJWK]) -> bool:
        is_other = not self._is_known or {k: v._jwk_data for k, v in keys.items()} != {
            k: v._jwk_data for k, v in self._keys.items()
        }
        self._keys, self._is_known = keys, True
        if is_other:
            self._known.clear()
        return is_other


def parse_set(content: bytes) -> Mapping[str | None, jwt.PyJWK]:
    """Return the keys of a JWKS by their names. Raises ConfigError if it has none that can be used."""
    try:
        found = jwt.PyJWKSet.from_dict(msgspec.json.decode(content, type=dict[str, Any]))
    except (*JSON_ERRORS, jwt.PyJWTError, ValueError, TypeError, AttributeError) as error:
        hint = 'a JSON object {"keys": [...]} with public keys'
        raise ConfigError(f"this is no usable JWKS: {error}", where=WHERE, hint=hint) from error
    usable = {key.key_id: key for key in found.keys if key.key_type != "oct"}  # A shared secret signs nothing here.
    if not usable:
        raise ConfigError("this JWKS has no public key", where=WHERE)
    return usable


def _words(error: jwt.PyJWTError) -> str:
    match error:
        case jwt.InvalidAudienceError():
            return "it is for another audience"
        case jwt.InvalidIssuerError():
            return "it is of another issuer"
        case jwt.MissingRequiredClaimError():
            return f"it lacks the claim {error.claim}"
        case jwt.InvalidSignatureError():
            return "its signature is wrong"
        case _:
            return "it cannot be read"
