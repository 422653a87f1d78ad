"""A workload replayed against a live endpoint: `maitred bench`.

    api.py          `maitred.bench`
    benchmark.py    a run: what the endpoint serves and how it counts, warm-up, the workload, Ctrl-C
    observed.py     what clients saw, as the rows of a simulation
    ramp.py         arrivals at a rate that grows over the run
    tokenizer.py    words of prompts that are one token each
    vllm_result.py  the result file of vLLM's benchmark
    prediction.py   the same requests simulated, and the error of each figure

The clients are in `emulator.clients`. What comes out is a `maitred.Result`, as from a simulation.
"""

from __future__ import annotations
