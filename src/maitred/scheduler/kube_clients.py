"""Clients of the API of a Kubernetes cluster, found as every program in a pod finds it.

In a pod the address is in KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, and the folder of the service account has the
authority that signs its certificate, the token and the namespace; elsewhere KUBECONFIG, or ~/.kube/config, says where it is.
lightkube reads all that, and reads a token again that has been renewed. What is asked is a path of the API, what is answered is
JSON, of which the caller decodes what it needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec

from maitred.core.errors import ConfigError, MaitredError

ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""The folder of the service account in every pod."""
GONE: Final = 410
"""The status for a version that the API has forgotten."""
_TIMEOUT_SECS: Final = 10.0
"""How long the API may take to answer, and to send a byte of what it sends at once."""


class KubeError(MaitredError):
    """The API cannot be asked, or has refused, with words for the log."""

    def __init__(self, problem: str, status: int = 0) -> None:
        """`status` is that of the answer, or 0 if there is none."""
        super().__init__(problem)
        self.status = status


class _Status(msgspec.Struct):
    """What the API says beside an error."""

    message: str = ""
    code: int = 0


class KubeApi:
    """The API of one cluster. Used inside one event loop."""

    def __init__(self, client: Any, where: str, namespace: str, timeout_secs: float) -> None:
        """`client` is one of httpx's, `where` its address for the log, and `namespace` that of this pod."""
        self._client, self.where, self.namespace = client, where, namespace
        self._timeout_secs = timeout_secs

    async def ask(self, method: str, path: str, params: Mapping[str, str] | None = None, body: object = None) -> bytes:
        """Return the answer. Raises KubeError."""
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            answer = await self._client.request(method, path, params=params, content=content, headers=headers)
        except Exception as error:  # httpx's, ssl's, lightkube's for a token that is gone: all of them are failures
            raise self._unreachable(error) from error
        if answer.status_code >= 300:
            raise self._refused(answer.status_code, answer.content)
        return bytes(answer.content)

    async def watch(self, path: str, params: Mapping[str, str], secs: float) -> AsyncIterator[bytes]:
        """Yield the lines of an answer as they come, until it ends, at most `secs`. Raises KubeError, also for an answer that
        breaks off."""
        import httpx2

        request = self._client.build_request(
            "GET", path, params=params, timeout=httpx2.Timeout(self._timeout_secs, read=secs + self._timeout_secs)
        )
        try:
            async with asyncio.timeout(self._timeout_secs):  # The head comes at once, whatever the rest takes.
                answer = await self._client.send(request, stream=True)
            try:
                if answer.status_code >= 300:
                    raise self._refused(answer.status_code, await answer.aread())
                async for line in answer.aiter_lines():
                    if line:
                        yield line.encode()
            finally:
                await answer.aclose()
        except (httpx2.HTTPError, OSError) as error:
            raise self._unreachable(error) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    def _unreachable(self, error: Exception) -> KubeError:
        words = " ".join(str(error).split()) or type(error).__name__
        return KubeError(f"the API of Kubernetes at {self.where} cannot be asked: {words}")

    def _refused(self, status: int, content: bytes) -> KubeError:
        try:
            words = " ".join(msgspec.json.decode(content, type=_Status).message.split())
        except msgspec.MsgspecError:
            words = ""
        said = f": {words}" if words else ""
        return KubeError(f"the API of Kubernetes at {self.where} answers {status}{said}", status)


def open_kube(account: str = ACCOUNT, timeout_secs: float = _TIMEOUT_SECS) -> KubeApi:
    """Return a client. `account` is the folder of the service account. Nothing is asked yet. Raises ConfigError where lightkube
    is not installed, and KubeError where nothing says which cluster it is."""
    try:
        import httpx2
        from lightkube import KubeConfig
        from lightkube.config.client_adapter import AsyncClient, ConnectionParams
    except ImportError as error:
        what = "Kubernetes needs lightkube, which is not installed"
        raise ConfigError(what, hint="pip install 'maitred[kubernetes]'") from error
    try:
        config: Any = KubeConfig.from_env(service_account=account).get()
        # Proxies of the environment are for other hosts.
        client = AsyncClient(config, ConnectionParams(timeout=httpx2.Timeout(timeout_secs), trust_env=False))
    except Exception as error:  # lightkube raises KeyError for a variable that is not set, and ssl's errors
        words = f"{error} is not set" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise KubeError(f"no cluster of Kubernetes is known here: {words} (run in a pod, or set KUBECONFIG)") from error
    return KubeApi(client, str(config.cluster.server), config.namespace or "default", timeout_secs)


def require_lightkube() -> None:
    """Raise ConfigError where lightkube is not installed."""
    try:
        import lightkube  # noqa: F401
    except ImportError as error:
        what = "Kubernetes needs lightkube, which is not installed"
        raise ConfigError(what, hint="pip install 'maitred[kubernetes]'") from error
