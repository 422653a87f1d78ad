"""A world in memory: programs of asyncio run in it unchanged, in virtual time, and all that is random follows from a seed.

    from maitred.testing.world import Network, VirtualLoop

    loop = VirtualLoop(seed=7)
    Network(loop).hosts["engine"] = ["10.0.0.2"]
    loop.run_until_complete(main())

The world itself:

    loop.py       the event loop: its clock jumps, the order of what is due at one instant is drawn
    draws.py      a generator of random numbers for each concern
    network.py    names, addresses, listeners
    place.py      where code runs: the descriptors, connections and tasks of one program
    transport.py  connections, as TCP makes them; streams.py: one direction of one
    machine.py    a machine, on which one program runs, and its disk; threads.py: work that programs give to threads
    unsupported.py  what a program may ask of a loop and a world does not have

What is played with the gateway in it (docs/world.md):

    scenario.py    what takes part; swarm.py: the scenario of a seed, for some with strict_rules.py; shrinking.py: what one that
                   fails can do without
    simulation.py  a scenario, played to its end, with what is on its stage.py; process.py: the gateway on it
    invariants.py  what must hold; books.py: requests and slots, by the log of decisions, with booked.py: what a slot takes, and
                   turn_books.py, starving_books.py: whose turn it is; engine_books.py: by what engines saw; program_books.py:
                   agent programs
    behaviours.py  what clients do; clients.py and answers.py: what they see
    engines.py     emulated engines and their faults; lies.py: wrong pages of them; chaos.py: all kinds of faults
"""

from __future__ import annotations

from maitred.testing.world.draws import Draws
from maitred.testing.world.loop import Deadlock, Livelock, VirtualLoop
from maitred.testing.world.network import Network
from maitred.testing.world.place import Place
from maitred.testing.world.streams import LinkConfig
from maitred.testing.world.transport import Connection, MemoryTransport, Tap

__all__ = [
    "Connection",
    "Deadlock",
    "Draws",
    "LinkConfig",
    "Livelock",
    "MemoryTransport",
    "Network",
    "Place",
    "Tap",
    "VirtualLoop",
]
