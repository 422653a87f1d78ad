"""May its program hold memory? (ThunderAgent's question; this room is still to be furnished.)

A program is an agent's run of many requests: it alternates between reasoning (a request is in an engine) and acting (a tool
runs, its KV lies idle). When the KV of all programs no longer fits, some are paused as a whole, rather than all being
evicted a little. The core will say which, when, and where a resumed one goes.
"""
