"""Continuous batching as vLLM plans its steps (`continuous`), one step ahead (`plan_ahead`), and with prompts in one of N steps
only (`prefill_cadence`)."""
