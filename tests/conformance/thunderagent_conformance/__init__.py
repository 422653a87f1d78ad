"""ThunderAgent's recorded scenarios, played against the real gateway.

    scenario     the file's format, strictly
    engines      mock vLLM engines, in this process
    gateway      the flags of `maitred serve`, which are ThunderAgent's where it has them
    play         a timeline, step by step
    record       what was observed; decisions: what the gateway's decision log says
    expect       what was expected, key by key; snapshots and traffic hold some of its rules
    intentions   what was wanted, and notes, where it is said in words
    rows         independent requests, one per row
    runner       all scenarios of a file

Clients, sockets, gateways, turns and the measuring of lag are those of `smg_conformance`. What the runner does not understand
raises CannotCheck, and that is a failure: nothing passes because it was skipped.
"""
