"""The link between one scheduler and its gateways, where they are processes of their own (`docs/cluster.md`). Sans-IO.

    messages.py         what is said, as data
    terms.py            what is said of requests, memories and backends
    fields.py           the numbers in it
    failure_kinds.py    what is said of backends that fail
    prompt_hashes.py    what is said of prompts
    channel.py          one connection: who the peer is, frames, and their bounds
    authentication.py   the proofs by a shared secret
    gateway_end.py      the end of a gateway: its requests, and whom it obeys
    lease.py            until when it may start requests
    gateway_request.py  the life of one request at that end
    marks.py            what that end is still to say of what has ended
    gateway_memories.py what the requests of agent programs have asked for there
    events.py           what that end tells its driver
    scheduler_end.py    the end of the scheduler that leads: grants by `Admission`, and what its gateways hold
    connections.py      the connections there
    linked_admission.py admission for the requests of all gateways
    placer.py           what says where they go
    linked_programs.py  the memories of the requests of agent programs
    gateway_books.py    what the scheduler knows of each gateway
    unaccounted.py      slots whose gateway is gone, until the engines show them gone
    door.py             which gateways are welcomed
    learning.py         what a scheduler may grant that has just begun to lead
    slot_settling.py    how many slots there are, as gateways come, go and are learned of
    model_slots.py      how many slots each model has

An end is told what happens, with the time of its own monotonic clock (`now`, µs), and has bytes to send and events for its
driver (`scheduler.sharing`). It reads no clock and no socket.
"""
