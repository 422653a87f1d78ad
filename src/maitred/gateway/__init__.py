"""The gateway: an OpenAI-compatible reverse proxy that asks a scheduler (`maitred.scheduler`).

The life of a request, and the room for each part of it:

    1. intake        `intake`: find its tenant, read its body within a limit, parse the few fields that decisions depend on. A
                     request that is wrong by itself is refused here, before it costs a slot.
    2. admission     `proxy`: submit it, and wait for a slot. With agent programs, memory comes before the slot; comments are
                     sent meanwhile (`forwarding.waiting_stream`).
    3. forwarding    `forwarding`: send its original bytes to the backend that the scheduler names; withhold the head of the
                     response until the first data of the body. Until then another backend may be tried, and a higher class may
                     take the slot.
    4. first byte    ask once whether the response may be sent, or the slot was preempted. Then write the body through as it
                     arrives.
    5. release       exactly once, in `proxy`, however the request ends: drained, failed, preempted, client disconnected.

The gateway itself decides nothing. It reports every event to the scheduler, with the time at which it happened.

    app              the parts, and which of them serves which path
    proxy            one request, from its intake to its end
    refusal_pace     when a 429 is told to a tenant that retries at once
    error_responses  every error that the gateway answers with
    limit_headers    what a client is told of its limits
    routes           the paths that clients may ask for
    config           the keys

The rooms, each importing only from those behind it: admin (pages, reload), intake, forwarding, observe (what is told of
requests), access (who sees what), bodies.

Of these modules scripts outside the project import one name each, which stands elsewhere: engine_readings, kv_pages,
passed_routes, polling, request_fields.
"""

from __future__ import annotations

from maitred.gateway.config import GatewayConfig

__all__ = ["GatewayConfig"]
