"""The live world: an OpenAI-compatible reverse proxy that drives admission and routing.

The life of a request:

    1. intake      its body is read, within a limit, and the few fields that decisions depend on are parsed; its class is read
                   from a header. What is wrong with it by itself is refused here, before it costs anyone a slot.
    2. admission   `driver` submits it to the core and waits, if it must, for the decision.
    3. routing     a router chooses among the healthy backends that serve its model (`fleet`).
    4. relay       the original bytes are sent on; the head of the answer is withheld until the first data of its body has
                   come, and until then the next backend may be tried. Then the body is written through as it comes.
    5. release     exactly once, whatever happened: drained, client gone, failed.

Nothing here decides: the cores do, and are told everything with the time at which it happened.
"""

from __future__ import annotations

from maitred.gateway.config import GatewayConfig

__all__ = ["GatewayConfig"]
