"""All flags of `maitred simulate`, as one typed record. Each heading of its help has a module of its own:

    workload_flags.py    what arrives: traces, synthetic workloads
    synthetic_flags.py   more of the latter: specifications, closed loops, scales
    cluster_flags.py     instances and routing
    disaggregation_flags.py  prefill and decode instances
    admission_flags.py   what stands before the router
    flow_flags.py        flow control
    ../instance_flags.py what each instance is made of
    ../model_flags.py    what runs there on which GPUs, and how long steps take
    objective_flags.py   what the run is judged by, and how long it lasts
    output_flags.py      what is shown and written of it

A flag is a field there, named like it. If it stands for one key of the configuration, `KEYS` of its module says which; a flag
in µs (as BLIS has them) for a key in ms is in `IN_MICROS`. A flag that is left out is None and overrides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from maitred.cli.instance_flags import InstanceFlags
from maitred.cli.model_flags import ModelFlags
from maitred.cli.simulate.admission_flags import AdmissionFlags
from maitred.cli.simulate.cluster_flags import ClusterFlags
from maitred.cli.simulate.disaggregation_flags import DisaggregationFlags
from maitred.cli.simulate.flow_flags import FlowFlags
from maitred.cli.simulate.output_flags import OutputFlags
from maitred.cli.simulate.synthetic_flags import SyntheticFlags
from maitred.cli.simulate.workload_flags import WorkloadFlags


@dataclass(frozen=True, kw_only=True)
class Flags(
    OutputFlags,
    InstanceFlags,
    ModelFlags,
    FlowFlags,
    AdmissionFlags,
    DisaggregationFlags,
    ClusterFlags,
    SyntheticFlags,
    WorkloadFlags,
):
    """What the user said. Help shows the last of these first, as dataclasses collect their fields."""

    @property
    def run_seed(self) -> int:
        """The seed of the run, and of its workload if that names none."""
        return 42 if self.seed is None else self.seed
