"""The process of a worker of `maitred serve --workers N --scheduler ADDRESS` (`linked_workers`); see `workers.process`."""

from __future__ import annotations

import sys

from maitred.gateway.cluster.linked_workers import LinkedWorker
from maitred.gateway.workers.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], LinkedWorker))
