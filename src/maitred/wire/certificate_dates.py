"""When certificates are valid, read from their bytes: `ssl` tells it of those of peers alone.

A certificate is DER (X.690): elements of a tag, a length and a content. The dates have a fixed place in it (RFC 5280, 4.1):

    Certificate { TBSCertificate { [0] version, serialNumber, signature, issuer, Validity { notBefore, notAfter }, ... } ... }

The version may be missing. A date is UTCTime, `YYMMDDHHMMSSZ` of the years 1950 to 2049, or GeneralizedTime, with four digits.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

_PEM: Final = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----\s*([A-Za-z0-9+/=\s]+)-----END")
_VERSION_TAG: Final = 0xA0
"""The context-specific tag [0], constructed: what stands first unless the version is missing."""
_UTC_TIME_TAG: Final = 0x17
"""The tag of UTCTime; a date with another one is a GeneralizedTime."""
_FIRST_TWO_DIGIT_YEAR: Final = b"50"
"""Years of two digits from this one on are of the last century (RFC 5280, 4.1.2.5.1)."""


class Validity(NamedTuple):
    """From when to when a certificate is valid."""

    begins: datetime
    ends: datetime

    def problem(self, now: datetime) -> str | None:
        """Return why the certificate is not valid at `now`, or None if it is."""
        if now < self.begins:
            return f"is not valid before {self.begins:%Y-%m-%dT%H:%M:%SZ}"
        if now > self.ends:
            return f"has expired at {self.ends:%Y-%m-%dT%H:%M:%SZ}"
        return None


class _Element(NamedTuple):
    tag: int
    begins: int
    """Where its content begins."""
    ends: int


def read_validities(chain: bytes) -> Iterator[Validity | None]:
    """Yield the validity of each certificate in PEM, in their order, or None for one whose dates make no sense: OpenSSL loads
    and serves such a certificate."""
    for encoded in _PEM.findall(chain):
        try:
            yield _read_validity(base64.b64decode(encoded))
        except (ValueError, IndexError):
            yield None


def _read_validity(der: bytes) -> Validity:
    signed = _element(der, _element(der, 0).begins)
    first = _element(der, signed.begins)
    at = first.ends if first.tag == _VERSION_TAG else signed.begins
    for _ in ("serialNumber", "signature", "issuer"):
        at = _element(der, at).ends
    begins = _element(der, _element(der, at).begins)
    return Validity(_date(der, begins), _date(der, _element(der, begins.ends)))


def _element(der: bytes, at: int) -> _Element:
    """Return the element that begins at `at`."""
    tag, length, begins = der[at], der[at + 1], at + 2
    if length & 0x80:  # The length has so many bytes of its own.
        num_bytes = length & 0x7F
        length = int.from_bytes(der[begins : begins + num_bytes], "big")
        begins += num_bytes
    return _Element(tag, begins, begins + length)


def _date(der: bytes, element: _Element) -> datetime:
    text = der[element.begins : element.ends]
    if element.tag == _UTC_TIME_TAG:
        text = (b"19" if text[:2] >= _FIRST_TWO_DIGIT_YEAR else b"20") + text
    return datetime.strptime(text.decode(), "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
