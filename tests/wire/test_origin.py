"""Origins: the URLs of upstreams, and what is wrong with those that are none."""

from __future__ import annotations

import pytest

from maitred.core.errors import ConfigError
from maitred.wire.origin import Origin


@pytest.mark.parametrize(
    ("url", "origin", "authority"),
    [
        ("http://a:9001", Origin("a", 9001), "a:9001"),
        ("http://a/", Origin("a", 80), "a"),
        ("https://a", Origin("a", 443, tls=True), "a"),
        ("https://a:80", Origin("a", 80, tls=True), "a:80"),
        ("http://[::1]:9", Origin("::1", 9), "[::1]:9"),
        ("http://Engine_1.local.:9", Origin("engine_1.local.", 9), "engine_1.local.:9"),
        ("http://b\u00fccher", Origin("xn--bcher-kva", 80), "xn--bcher-kva"),
    ],
)
def test_origins(url: str, origin: Origin, authority: str) -> None:
    assert Origin.parse(url) == origin
    assert origin.authority == authority
    assert Origin.parse(str(origin)) == origin


NO_ORIGINS = ["a:9001", "localhost", "ftp://a", "http://", "http://a/v1", "http://a:x", "http://u@a", "", "http://h:0"]
NO_HOSTS = [
    "http://a b:80",
    "http://h\r\nx:80",
    "http://h\tx",
    " http://h",
    "http://a..b",
    "http://.a",
    "http://a{b}",
    "http://" + "a" * 64 + ".b",
    "http://h:" + "1" * 2_000_000,
    "http://" + "a." * 600 + "b",
]


@pytest.mark.parametrize("url", NO_ORIGINS + NO_HOSTS)
def test_urls_that_are_no_origin(url: str) -> None:
    with pytest.raises(ConfigError, match="--backend") as refused:
        Origin.parse(url, where="--backend")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300
    assert ("is too long for a URL" in str(refused.value)) == (len(url) > 1_000)


@pytest.mark.parametrize("url", ["http://user:hunter2@a:9001", "user:hunter2@a", "http://user:hunter2@a:x"])
def test_no_message_repeats_the_password_of_a_url(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Origin.parse(url)
    assert "***@a" in str(refused.value)
    assert "hunter2" not in str(refused.value)
