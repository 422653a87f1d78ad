"""maitred: one scheduling stack for LLM serving.

It answers five questions about a request: may it enter now (admission), may its agent program hold memory (programs),
which instance (routing), in what order (queueing), what fits in this step (batching). The code that answers is the same
in a live gateway, inside a real engine and in a simulator.
"""

from __future__ import annotations

__version__ = "0.1.0"
