"""Where the rules of other systems differ from ours: a module or package for each system.

    smg.py               SMG 1.13.0 (SGLang Model Gateway): numbers and rules of its priority scheduler
    sglang/              SGLang 0.5.23: its wait queue, what its prefill batches hold, what it retracts
    blis/                BLIS (inference-sim): its flow control, its instances
    trtllm.py            TensorRT-LLM: its MaxUtilization, tie for tie
    thunderagent.py      ThunderAgent: which rules of programs do not hold
    instance_rules.py    the rules of instances, by flavour

A configuration chooses them by a name (a scheduler, a flavour), and a factory makes them. Nothing below imports from here:
`admission.presets` and `programs.rules` load the rules of a flavour by the name of their module.
"""
