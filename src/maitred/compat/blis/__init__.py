"""BLIS's rules, where they differ from ours: to compare with its results (`flavour: blis`).

    clock      the outcome of a step is there when the step begins, and a step begins in its instance's turn
    batch      the first chunk of a prompt must fit whole; a sequence that lacks a block stalls; a victim starts anew
    blocks     the last copy of a block answers; a prompt may be cached as a whole; main memory can be a second tier
    admission  saturation is measured and the queue is served as in BLIS's own flow control

The heads of the files say each rule in full. `compat/instance_rules.py` chooses those of instances (the key
`instance.flavour`), `admission/presets.py` those of flow control (`admission.flavour`).

flow_control.py    which requests wait in front of the fleet, and which enter next
instance.py        when steps begin, and when their outcome is there
batch.py           what fits in a step, and which sequence gives way
block_manager.py   which blocks a sequence holds
tiered_blocks.py   the same, with main memory as a second tier
host_memory.py     the second tier
block_pool.py      what the blocks remember
"""
