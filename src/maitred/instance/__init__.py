"""One inference instance: queueing, batching and KV blocks, composed, with a latency model for its clock.

The owner of the time steps it: the simulator in virtual time, the emulated engine in real time. It decides nothing itself.

    instance.py           when steps start and end; time skipping
    engine_core.py        the sequences, and what a run of steps does to them; which request is refused
    plain_core.py         the same for the usual runs, in one straight line each
    step_run.py           a step and its repetitions, and where an input cuts them off
    completions.py        after which step each sequence completes; deadlines.py: when it is of no use any more;
                          held_decodes.py: sequences that stand still
    mailbox.py            what a scheduler that plans one step ahead does not know yet
    entry_limits.py       which requests are let in, by length and by what waits; where an answer ends
    config.py, events.py  what goes in, what comes out; vllm_keys.py and sglang_config.py: the keys of these engines
    flavours.py           the engines whose way an instance follows; batch_former.py makes KV memory and batch by the
                          configuration
    step_meter.py         how busy it was, and the gaps between tokens: how often each, and which request had which
    speculative.py        tokens that a draft proposes; kv_offload.py: keys of KV in the memory of the host
    throughput_limit.py   the most that it can take of a traffic
    latency/              how long a step takes
    catalogue/            models and GPUs as data
"""

from __future__ import annotations

from maitred.instance.config import InstanceConfig
from maitred.instance.events import EventKind, InstanceEvent
from maitred.instance.instance import Instance
from maitred.instance.latency import LinearLatency, parse_latency

__all__ = ["EventKind", "Instance", "InstanceConfig", "InstanceEvent", "LinearLatency", "parse_latency"]
