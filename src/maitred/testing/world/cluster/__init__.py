"""Gateways and schedulers of their own, a store, engines and clients, in a world (docs/world.md).

scenario.py      what takes part; swarm.py: the scenario of a seed
simulation.py    a scenario, played to its end, with what is on its stage.py
processes.py     gateways and schedulers, each on a machine with a clock of its own
store.py         the store of the election, with its faults
faults.py        faults of processes, links and the store; aimed.py: those at an instant at which slots are in danger
link_watch.py    what is said on the links, and what must hold of it; invariants.py: what must hold of all the rest
"""
