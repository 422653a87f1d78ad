"""One scheduler that many gateways share (`maitred serve --workers`): both ends of `scheduler.link`, over Unix sockets and TCP.

At the scheduler's end the parts of `Scheduler` decide as for one gateway, and every request of a gateway has a stand-in there:

    hosted_scheduler.py   the scheduler, with what listens
    host_connections.py   their connections, and the log of those that are cut
    host.py               the sockets and the timer
    leadership.py         whether it leads, as an election has it
    fleet_news.py         what gateways are told of the backends
    kept_usage.py         counts of limits, which gateways keep for the next leader
    kept_limits.py        learned limits of engines, likewise
    orphan_watch.py       what becomes of slots whose gateways are gone
    hosted_admission.py   the driver of admission: decisions become messages
    fleet_placer.py       where a request goes, and what the fleet is told of it
    hosted_programs.py    the memories of agent programs' requests
    hosted_attempts.py    the stand-in of a request at its backend

At a gateway's end the same seam (`scheduler.interface`) is there, and asks:

    remote_scheduler.py   the parts, wired together
    link_client.py        the socket and the timer
    class_notes.py        the classes that requests have asked for, on their way to the log of the scheduler
    unlinked.py           what is done without a scheduler, by shares.py
    dialer.py             which scheduler to connect to, and how
    own_host.py           the way to the scheduler of the same process
    remote_admission.py   the driver of admission: a slot is granted together with a backend
    remote_programs.py    the driver of agent programs
    remote_placement.py   the backend that was granted; one that is chosen here, for requests that need no slot
    fleet_mirror.py       the fleet as the scheduler tells it; what attempts come to is reported

Both ends write through link_writer.py, and count by mode_times.py how long they are in each mode.
"""
