"""Where schedulers elect the one that leads.

election.py          the contract, and a scheduler that is the only one
elector.py           takes part for one scheduler: campaigns, renews, steps down
file_election.py     by a lock on a file, on one machine
redis_election.py    in Redis or Valkey, alone, behind Sentinel, or as a cluster
kube_election.py     by a Lease of Kubernetes
opening.py           which one a URL means
"""
