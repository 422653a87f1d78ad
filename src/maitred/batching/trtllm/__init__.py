"""Batching as TensorRT-LLM's users extend it: which requests have KV memory, and then which of these run in the next step.

schedulers.py         the interfaces of the two stages; llm_request.py: a request as they see it
capacity.py           the capacity policies, on capacity_budgets.py (what a pass counts)
micro_batch.py        the requests of a step, with the chunks of context_chunking.py
batch_waiting.py      whether prompts wait for others
kv_cache_view.py      KV memory as schedulers see it
"""
