"""Backends that come and go: who finds them. What becomes of them is decided in `scheduler.backend_set`.

base.py           the kind of plug-in: a source of backends, and what it is given
driver.py         runs the sources of one scheduler, and carries the decisions out
static.py         backends that are written down
file_source.py    a file that something else writes, in the format of Prometheus
dns.py            every address of a name
kubernetes.py     a service or an InferencePool; kube_objects.py: what the API says of them
"""
