"""What a scheduler knows of programs beside their core.

memories.py   the KV memory of each backend
state.py      what keeps the programs across restarts
store.py      the file that they are in
parts.py      all of it, put together
"""
