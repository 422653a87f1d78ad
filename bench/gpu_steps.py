"""The time of bare steps of a decoder on a real GPU: what `gpu_steps_table.py` holds the latency models to.

    python bench/gpu_steps.py steps.json            # on a machine with a GPU and PyTorch; needs nothing else

The decoder has the shape of Llama-3.1-8B and random weights in bfloat16. A step does all that it must do on the GPU: norms,
matrix products (cuBLAS), rotation, writing KV, attention, the logits of the last tokens and the choice of the largest. It runs
in a CUDA graph, so nothing waits for Python, and pointwise parts are fused (`torch.compile`). What an engine does on the CPU is
not in these times. Attention is PyTorch's FlashAttention 2, and for whole prompts that of cuDNN as well (`cudnn`).

A step is a number of sequences that decode, each over the same context, and at most one chunk of a prompt behind what is in KV
already. `ms` is the median of `REPEATS` steps. Then the step is repeated for `LASTING_SECS`: `lasting_ms` is the mean of these,
`watts` and `mhz` are the power and the clock of the GPU meanwhile.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, INTER, VOCABULARY = 4096, 32, 32, 8, 128, 14336, 128_256
REPEATS, WARM_UP, LASTING_SECS = 9, 3, 1.5
PREFILLS = [
    (256, 0),
    (512, 0),
    (1024, 0),
    (2048, 0),
    (4096, 0),
    (8192, 0),
    (16384, 0),
    (512, 30720),
    (2048, 8192),
    (2048, 30720),
]
"""Tokens of a chunk, and tokens of its prompt before it."""
DECODES = [
    *[(1, 1024), (8, 1024), (16, 1024), (32, 1024), (64, 1024), (128, 1024), (256, 1024)],
    *[(1, 8192), (8, 8192), (32, 8192), (1, 32768), (8, 32768)],
]
"""Sequences, and the context of each."""
MIXED = [(512, 0, 32, 1024), (2048, 0, 32, 1024), (2048, 0, 128, 1024), (2048, 8192, 32, 4096)]
"""A chunk, what is before it, sequences that decode beside it, and the context of each."""

torch: Any = importlib.import_module("torch")
nvml: Any = importlib.import_module("pynvml")


def _random(*shape: int) -> Any:
    return torch.empty(*shape, device="cuda", dtype=torch.bfloat16).normal_(std=0.02)


def _norm(x: Any, rest: Any, gain: Any) -> Any:
    """Return the sum of `x` and `rest` with unit root mean square times `gain`, and the sum itself."""
    total = (x + rest).float()
    return (total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-5)).to(torch.bfloat16) * gain, total.to(torch.bfloat16)


def _rotate(heads: Any, cos: Any, sin: Any) -> Any:
    a, b = heads.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _gate(both: Any) -> Any:
    a, b = both.chunk(2, -1)
    return torch.nn.functional.silu(a) * b


def _flash(query: Any, kv: Any, *, is_causal: bool) -> Any:
    """Return flash attention. A causal mask ends at the last token of both, and heads of the query share those of KV."""
    return torch.ops.aten._scaled_dot_product_flash_attention(query, kv[0], kv[1], 0.0, is_causal)[0]


def _cudnn(query: Any, kv: Any, *, is_causal: bool) -> Any:
    """Return the attention of cuDNN. A causal mask begins at the first token of both."""
    return torch.ops.aten._scaled_dot_product_cudnn_attention(query, kv[0], kv[1], None, False, 0.0, is_causal)[0]


class Decoder:
    """The decoder. Every layer has weights of its own, so that none is found in the cache of the GPU."""

    def __init__(self) -> None:
        self._layers = [
            (
                _random(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD),
                _random(HIDDEN, HIDDEN),
                _random(HIDDEN, 2 * INTER),
                _random(INTER, HIDDEN),
            )
            for _ in range(LAYERS)
        ]
        self._norm, self._rotate, self._gate = map(torch.compile, (_norm, _rotate, _gate))
        self._gain, self._embedding, self._head = _random(HIDDEN), _random(VOCABULARY, HIDDEN), _random(HIDDEN, VOCABULARY)

    def make_step(self, chunk: int, before: int, decodes: int, context: int, attend: Callable[..., Any]) -> Callable[[], Any]:
        """Return the function that does one step, with its own KV."""
        tokens = chunk + decodes
        ids = torch.randint(VOCABULARY, (tokens,), device="cuda")
        angle = torch.rand(tokens, 1, HEAD // 2, device="cuda")
        cos, sin = angle.cos().to(torch.bfloat16), angle.sin().to(torch.bfloat16)
        of_chunk = _random(LAYERS, 2, 1, KV_HEADS, before + chunk, HEAD) if chunk else None
        of_decodes = _random(LAYERS, 2, decodes, KV_HEADS, context, HEAD) if decodes else None
        last = torch.tensor([*range(decodes), *([tokens - 1] if chunk else [])], device="cuda")

        def step() -> Any:
            x = self._embedding[ids]
            rest = torch.zeros_like(x)
            for number, (qkv, out, up, down) in enumerate(self._layers):
                y, rest = self._norm(x, rest, self._gain)
                heads = (y @ qkv).view(tokens, HEADS + 2 * KV_HEADS, HEAD)
                turned, v = self._rotate(heads[:, :-KV_HEADS], cos, sin), heads[:, -KV_HEADS:]
                q, k = turned[:, :HEADS], turned[:, HEADS:]
                parts = []
                if of_decodes is not None:
                    parts.append(_decode(of_decodes[number], q[:decodes], k[:decodes], v[:decodes]))
                if of_chunk is not None:
                    parts.append(_prefill(attend, of_chunk[number], before, q[decodes:], k[decodes:], v[decodes:]))
                y, rest = self._norm((parts[0] if len(parts) == 1 else torch.cat(parts)) @ out, rest, self._gain)
                x = self._gate(y @ up) @ down
            y, _ = self._norm(x[last], rest[last], self._gain)
            return (y @ self._head).argmax(-1)

        return step


def _decode(kv: Any, q: Any, k: Any, v: Any) -> Any:
    """Return the attention of sequences that decode: heads that share KV stand in the place of further tokens."""
    rows = q.shape[0]
    kv[0, :, :, -1], kv[1, :, :, -1] = k, v
    return _flash(q.reshape(rows, KV_HEADS, HEADS // KV_HEADS, HEAD), kv, is_causal=False).reshape(rows, HIDDEN)


def _prefill(attend: Callable[..., Any], kv: Any, before: int, q: Any, k: Any, v: Any) -> Any:
    """Return the attention of a chunk."""
    kv[0, 0, :, before:], kv[1, 0, :, before:] = k.transpose(0, 1), v.transpose(0, 1)
    return attend(q.transpose(0, 1)[None], kv, is_causal=True)[0].transpose(0, 1).reshape(q.shape[0], HIDDEN)


def capture(step: Callable[[], Any]) -> Any:
    """Return a step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def measure(graph: Any) -> float:
    """Return the median time of a step in ms."""
    times = []
    for _ in range(WARM_UP + REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return float(statistics.median(times[WARM_UP:]))


def last(graph: Any, ms: float) -> dict[str, float]:
    """Return the mean time of a step that is repeated for a while, in ms, and power and clock in the second half of it."""
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    steps = max(2, round(LASTING_SECS * 1000 / ms))
    begin.record()
    for _ in range(steps):
        graph.replay()
    end.record()
    watts, clocks = [], []
    while not end.query():
        watts.append(nvml.nvmlDeviceGetPowerUsage(gpu) / 1000)
        clocks.append(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM))
        time.sleep(0.02)
    half = len(watts) // 2
    return {
        "lasting_ms": round(begin.elapsed_time(end) / steps, 3),
        "watts": round(statistics.mean(watts[half:])),
        "mhz": round(statistics.mean(clocks[half:])),
    }


def main() -> None:
    file = Path(sys.argv[1])
    nvml.nvmlInit()
    time.sleep(1)
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
    decoder, steps = Decoder(), []
    shapes = [*[(*prefill, 0, 0) for prefill in PREFILLS], *[(0, 0, *decode) for decode in DECODES], *MIXED]
    for shape in shapes:
        graph = capture(decoder.make_step(*shape, _flash))
        row: dict[str, Any] = dict(zip(("chunk", "before", "decodes", "context"), shape, strict=True))
        row["ms"] = round(measure(graph), 3)
        row |= last(graph, row["ms"])
        if shape[0] and not shape[1]:
            row["cudnn_ms"] = round(measure(capture(decoder.make_step(*shape, _cudnn))), 3)  # no mask behind what is in KV
        del graph
        torch.cuda.empty_cache()
        steps.append(row)
        print(row, flush=True)
        file.write_text(json.dumps({"about": about, "steps": steps}, indent=1) + "\n", encoding="utf-8")
    time.sleep(5)
    about["idle_watts"] = round(nvml.nvmlDeviceGetPowerUsage(nvml.nvmlDeviceGetHandleByIndex(0)) / 1000)
    file.write_text(json.dumps({"about": about, "steps": steps}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
