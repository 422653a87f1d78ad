"""Models and hardware, as data: what latency models and KV capacities are computed from."""
