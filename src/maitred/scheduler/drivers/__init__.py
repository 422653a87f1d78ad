"""The cores in real time, each with one clock and one timer.

admission.py        the driver of admission, and the lease of a request that waits for a slot or holds it
programs.py         the driver of the programs, and the lease of memory that a request of a program has
cancel_scope.py     what stops a request, a slot, an attempt
deadline_timer.py   one timer for the next deadline of a core
"""
