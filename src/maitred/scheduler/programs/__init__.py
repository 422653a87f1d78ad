"""What a scheduler knows of programs beside their core.

memories.py   the KV memory of each backend
state.py      what keeps the programs across restarts
store.py      the SQLite file of the programs
redis_store.py their store in Redis, which schedulers share
parts.py      builds these parts
"""
