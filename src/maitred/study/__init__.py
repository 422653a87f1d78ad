"""Comparing and searching: many runs of the simulator, and what they say together."""
