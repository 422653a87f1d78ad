"""What every package stands on: requests, contracts, decisions, the registry of plug-ins, units and errors.

request.py        Request: all that a policy sees; sequence.py: SequenceState, a request inside an instance
contracts.py      the protocols by which the rooms meet: cores, queues, routers, prefix caches
decisions.py      inputs and decisions as data, and the log of them; replay.py: a log run again; tapped_log.py: a log followed;
                  copying.py: a core copied in its state
registry.py       the registry of plug-ins; policy_spec.py: how a policy and its parameters are written; imports.py: by name
units.py          microseconds, and seconds at the edge; slo_classes.py: classes in the words of BLIS and GAIE
errors.py         what every error tells: what, where, and what would be right
python_json.py    JSON with NaN and Infinity, as Python writes it; field_types.py: types of fields of structs that programs make
yaml_document.py  a YAML file with the line of each value; yaml_schema.py: as a struct
printing.py       text from outside, without what cannot be printed; environment.py: variables that are misspelt
histogram.py      distributions as counts, with quantiles; student_t.py: intervals from few values
lazy_heap.py      heaps with lazy deletion; steps.py: work between whose steps a loop may run; garbage.py: its collector
"""
