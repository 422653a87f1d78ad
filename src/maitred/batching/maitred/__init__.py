"""The batching of flavour `maitred`: it decides from what will happen.

`scheduler.py` has the rules. `step.py` plans a step, on `state.py` (what is known from step to step), `answer_lengths.py` (what
is learned), `memory_forecast.py` (what will be needed), `victims.py` (who is paused) and `prompt_shares.py` (whose prompt goes
on).
"""
