"""Inside other engines: maitred's policies as their schedulers. (This room is still to be furnished: first vLLM's.)

A plug-in translates between an engine's own request and queue types and `queueing`'s; it decides nothing itself.
"""
