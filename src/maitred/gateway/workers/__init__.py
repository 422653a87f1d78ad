"""One gateway of several processes: workers that serve on the same port, and a parent that schedules.

notes.py       what they say to each other past the scheduler's link
shares.py      what each worker counts, and how the parent adds it up
recorded.py    the traffic that they record, as one file
stand_in.py    who accepts the connections of a worker that does not serve
worker.py      a gateway that asks the parent for decisions, and for every page that shows the whole
parent.py      the scheduler, the pages and the files of all workers
settings.py    the folder in which workers find the parent's socket and their settings
process.py     a worker as a process
supervisor.py  starts the processes of the workers, and watches them

The command `maitred serve` (`maitred.cli.workers`) is the process of the parent.
"""
