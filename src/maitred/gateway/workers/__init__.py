"""One gateway of several processes: workers that serve on the same port, and a parent that schedules.

notes.py    what they say to each other past the scheduler's link
shares.py   what each worker counts, and how the parent adds it up
worker.py   a gateway that asks the parent for decisions, and for every page that shows the whole
parent.py   the scheduler, the pages and the files of all workers

A process is started and watched by the command (`maitred.cli.workers`).
"""
