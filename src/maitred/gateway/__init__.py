"""The live world: an OpenAI-compatible reverse proxy that drives admission and routing.

The life of a request:

    1. reception   who asks is found out, its body is read within a limit, and the few fields that decisions depend on are
                   parsed. What is wrong with it by itself is refused here, before it costs anyone a slot.
    2. admission   `driver` submits it to the core, and it waits, if it must, for its turn (`service`).
    3. routing     a router chooses among the healthy backends that serve its model (`fleet`).
    4. relay       the original bytes are sent on; the head of the answer is withheld until the first data of its body has
                   come (`answer`). Until then the next backend may be tried, and a higher class may take its slot.
    5. first byte  one question to the core, answered once: it may be shown, or it was preempted. Then the body is written
                   through as it comes.
    6. release     exactly once, whatever happened: drained, client gone, failed, preempted.

Nothing here decides: the cores do, and are told everything with the time at which it happened. What they are told of the fleet
is in `polling`, `fleet` and `capacity`; what they and the fleet look like in `observer`, `state` and `metrics`.
"""

from __future__ import annotations

from maitred.gateway.config import GatewayConfig

__all__ = ["GatewayConfig"]
