"""The page of the dashboard: one document, with its style and its script in it.

Its policy lets it run this script and no other, by its hash, load nothing, and talk to the gateway alone. What it is told
(names of tenants, models, programs, ids) becomes text and never markup: the script makes elements, and with
`require-trusted-types-for` a browser refuses to take markup from it at all.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from typing import NamedTuple

from maitred.webpage import read_page_file, shared_scripts, shared_style
from maitred.wire.messages import Headers


class Document(NamedTuple):
    """The page."""

    body: bytes
    headers: Headers


@cache
def dashboard_document() -> Document:
    """Return the page. It is the same for all who ask, and names nothing of the gateway."""
    style = shared_style() + read_page_file(__package__, "dashboard.css")
    scripts = "".join((*shared_scripts(), *(read_page_file(__package__, name) for name in _SCRIPTS)))
    page = read_page_file(__package__, "dashboard.html").replace("/*style*/", style).replace("/*script*/", scripts)
    policy = (
        f"default-src 'none'; script-src '{_hash(scripts)}'; style-src '{_hash(style)}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    headers = {
        b"content-security-policy": policy.encode(),
        b"x-content-type-options": b"nosniff",
        b"x-frame-options": b"DENY",
        b"referrer-policy": b"no-referrer",
        b"cross-origin-opener-policy": b"same-origin",
        b"cache-control": b"no-cache",
    }
    return Document(page.encode(), [*headers.items()])


_SCRIPTS = ("stream.js", "views.js", "dashboard.js")


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
