"""Trace formats: a module for each kind of file, registered under the prefix that users type (`azure:FILE`).

maitred.py       our own: CSV with a header; writers.py writes it
token_counts.py  azure, burstgpt: CSV with token counts only
hash_ids.py      mooncake, timed_trace, aiperf, bailian: JSON lines with `hash_ids`
blis.py          TraceV2 of BLIS; writers.py writes it
agentic.py       recorded sessions of coding agents
"""
