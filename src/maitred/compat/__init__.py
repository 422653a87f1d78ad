"""Where the rules of other systems differ from ours: one package or module for each system.

A configuration chooses them by a name (a scheduler, a flavour), and a factory makes them. Nothing below imports from
here.
"""
