"""The emulated engine: an inference instance behind the OpenAI API, paced in real time, and the tools to try it.

    app, schemas, responses, tokens   the API: endpoints, request bodies, response bodies, tokens without a tokenizer
    engine, pacer, metrics            from a request body to sequences; the instance on a real clock; vLLM's metrics
    finish_reasons                    how long an answer is, and why it ends
    clients                           clients that replay a workload over HTTP and count what they saw
    demo, demo_processes              engines and a gateway as child processes, under a mixed load

`pacer` owns the same `Instance` that the simulator steps, and ends its steps when the clock says so. Nothing is computed but
the time that steps take.
"""

from __future__ import annotations

from maitred.emulator.config import EngineConfig

__all__ = ["EngineConfig"]
