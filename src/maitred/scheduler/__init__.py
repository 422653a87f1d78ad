"""The scheduler of a gateway: all that decides, behind one interface.

interface.py    what a gateway knows of it
scheduler.py    the parts, wired together
placements.py   where a request goes, and where next
requests.py     a request as placements see it
failures.py     how a backend fails a request, and what is kept of that
config.py       the keys that the scheduler goes by
backend_set.py  which backends there are, by the lists of several sources (sans-IO)
ejection.py     which backends are left alone for a while (sans-IO)
link_config.py  the keys by which gateways and schedulers find each other
addresses.py    where a scheduler listens for gateways in other processes
redis_clients.py clients of Redis by URL
kube_clients.py clients of the API of Kubernetes

The rooms: drivers (the cores in real time), programs (what is known of programs beside their core), backends (the engines
behind a gateway), discovery (what finds them), engines (what they say of themselves).
"""
