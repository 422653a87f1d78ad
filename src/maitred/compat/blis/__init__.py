"""BLIS's rules, where they differ from ours: to compare with its results (`flavour: blis`).

flow_control.py    which requests wait in front of the fleet, and which enter next
instance.py        when steps begin, and when their outcome is there
batch.py           what fits in a step, and which sequence gives way
block_manager.py   which blocks a sequence holds
tiered_blocks.py   the same, with main memory as a second tier
host_memory.py     the second tier
block_pool.py      what the blocks remember
"""
