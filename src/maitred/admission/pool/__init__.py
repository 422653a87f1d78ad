"""What all pools have in common.

slot_pool.py         a slot is given, freed, and its holder ends or is tried again
slots.py             the arithmetic of slots and reservations
agenda.py            what the changes of one pool have left to settle in the others
pool_views.py        what a pool looks like from outside
"""
