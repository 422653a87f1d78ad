"""A cluster of the tests' own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kube_server import KubeServer


@pytest.fixture
def use_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[KubeServer], str]:
    """Return what makes a server the cluster of KUBECONFIG, and returns a folder that has no service account."""

    def use(server: KubeServer) -> str:
        config = tmp_path / "kubeconfig"
        config.write_text(
            f"""
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u, namespace: serving}}}}]
clusters: [{{name: c, cluster: {{server: "{server.url}"}}}}]
users: [{{name: u, user: {{token: "{server.token or "any"}"}}}}]
"""
        )
        monkeypatch.setenv("KUBECONFIG", str(config))
        return str(tmp_path / "none")

    return use
