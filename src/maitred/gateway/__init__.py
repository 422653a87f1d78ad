"""The gateway: an OpenAI-compatible reverse proxy that drives admission and routing.

The life of a request, and the file for each part of it:

    1. intake       `request_intake`, `request_fields`, `auth`: find its tenant, read its body within a limit, parse the few
                    fields that decisions depend on. A request that is wrong by itself is refused here, before it costs a slot.
    2. admission    `driver`: submit it to the admission core, and wait for a slot.
    3. routing      `proxy`, `fleet`: a router chooses among the healthy backends that serve its model.
    4. forwarding   `proxy`, `response_forwarder`: send its original bytes on; withhold the head of the response until the first
                    data of the body. Until then another backend may be tried, and a higher class may take the slot.
    5. first byte   ask the core once whether the response may be sent, or the slot was preempted. Then write the body through
                    as it arrives.
    6. release      exactly once, in `proxy`, however the request ends: drained, failed, preempted, client disconnected.

The gateway itself decides nothing. It reports every event to the cores, with the time at which it happened, and the cores
decide. What they know of the fleet comes from `polling`, `engine_metrics`, `fleet`, `capacity` and, for backends that do not
say how many requests they can run, `slot_learning`. What an operator sees is in `state`, `metrics` and `endpoints`, and
`page_access` says who sees which of it (without a key: `local_access`); `reload` changes the configuration in service.
`recording` writes down what happened (`append_file`), and `descriptor_watch` says when there are no file descriptors left.

With agent programs, memory comes before the slot: `program_driver` asks the programs core, which knows the KV memory of the
backends from `kv_pages` and `program_memories`; `waiting_stream` sends comments meanwhile. `program_views`,
`program_endpoints`, `program_metrics` and `program_profiles` show the programs, `program_state` keeps them across restarts, and
`program_parts` puts all of this together.

The other files:

    app               the parts, and which of them serves which path; config: the keys
    inbound_head      tenant, class and headers of a request; routes: the paths that clients may ask for; passed_routes: those
                      that are only passed on
    intake_rules      what the intake makes of a configuration; port_certificates: TLS of each port
    state_snapshots   what the whole gateway looks like; tenant_views: what a tenant sees of it; metric_rows: and of the metrics
    agent_headers     the session that the headers of an agent name; program_fields: which program a request belongs to
    body_budget       the bytes of all bodies; plain_runs: text of a large body that is not parsed
    json_slices       JSON that is read piece by piece; large_body, large_body_reader: bodies above 1 MiB, read that way
    body_members      members of a body that are changed; content_coding: bodies that are compressed
    engine_priority   the priority that an engine gets; shared_page: a page that is made in steps, once for all who ask
    prompt_text       the text by which prompts are compared; request_work: slots and tokens of a request
    cors              pages of other origins that may use the gateway
    possible_tenants  rules about tenants that no request can come from
    request_ids       one id of a request for all logs; intake_refusals: what is told of one that is refused
    attempts          one backend after the other; placements: which; attempt: one of them; attempt_outcomes: who is told of it
    retries           whether again, with retry_budget; cancel_scope: what stops a request, a slot, an attempt
    held_answer       the error of an engine that may be passed on
    ejection          which backends are left alone for a while; ejection_driver: its timer, its log
    served_models     which backends serve a model; slot_pools: which models share slots
    engine_report     what a reading of an engine says; engine_readings: reads it; engine_metrics: what a page means
    metrics_page      the rows of a page, with json_pages; server_info: the other page of an engine
    deadline_timer    one timer for the next deadline of a core; loop_lag: how late the event loop is; idle_checks: of the cores
    error_responses   every error that the gateway answers with; refusal_pace: when a 429 is told to who retries at once
    stream_dialects   errors and signs of life in a stream, as each API has them
    answer_usage      tokens of an answer; request_record, request_observer, request_metrics: what is told of a request
    access_log, logs  lines on standard error; background_writer: files without holding up the loop
    line_file         whole lines, while the file is moved or its disk fills
    bounded_thread    reading files that may hang
    program_store     the programs in a SQLite file
"""

from __future__ import annotations

from maitred.gateway.config import GatewayConfig

__all__ = ["GatewayConfig"]
