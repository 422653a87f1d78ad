"""Where the rules of other systems differ from ours: a module or package for each system.

    smg.py               SMG 1.13.0 (SGLang Model Gateway): numbers and rules of its priority scheduler
    sglang/              SGLang 0.5.23: its wait queue, what its prefill batches hold, what it retracts
    blis/                BLIS (inference-sim): its flow control, its instances
    trtllm.py            TensorRT-LLM: its MaxUtilization, tie for tie
    thunderagent.py      ThunderAgent: which rules of programs do not hold
    instance_rules.py    the rules of instances, by flavour
    presets.py           the presets of admission and the rules of programs, by flavour

A configuration chooses them by a name (a scheduler, a flavour), and a factory makes them. Nothing below imports from here. So
whoever makes configurations of names imports this package, and that makes the presets, and the policies that are registered
here, known to the rooms: `maitred.config`, `maitred.sim`, `maitred.replay`, `maitred.testing` and `maitred.plugins.vllm`; and
`maitred` itself with the first public name of it that is used.
"""

from __future__ import annotations

from maitred.admission.terms.presets import add_presets
from maitred.compat.presets import ADMISSION_PRESETS, PROGRAM_RULES
from maitred.core.registry import search_last
from maitred.programs.rules import add_rules

search_last(__name__)
add_presets(ADMISSION_PRESETS)
add_rules(PROGRAM_RULES)
