"""The emulated engine: an inference instance behind the OpenAI API, paced in real time, and the tools to try it.

    config                       the keys of an emulated engine
    engine, schemas, responses   the API: endpoints and the way from a request to sequences, request bodies, response bodies
    pacer, metrics, series       the instance on a real clock; vLLM's metrics, and how they are written
    tokens                       tokens without a tokenizer: how they are counted; how long an answer is, and why it ends
    clients                      clients that replay a workload over HTTP and count what they saw
    demo                         engines and a gateway as child processes, under a mixed load

`pacer` owns the same `Instance` that the simulator steps, and ends its steps when the clock says so. Nothing is computed but
the time that steps take.
"""

from __future__ import annotations

from maitred.emulator.config import EngineConfig

__all__ = ["EngineConfig"]
