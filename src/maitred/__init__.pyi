from maitred.admission import AdmissionConfig as AdmissionConfig
from maitred.core.errors import ConfigError as ConfigError
from maitred.core.errors import MaitredError as MaitredError
from maitred.core.request import PriorityClass as PriorityClass
from maitred.core.request import Request as Request
from maitred.instance import InstanceConfig as InstanceConfig
from maitred.instance import LinearLatency as LinearLatency
from maitred.report import By as By
from maitred.report import Result as Result
from maitred.report import Slo as Slo
from maitred.report import Summary as Summary
from maitred.report import Targets as Targets
from maitred.report import simulate as simulate
from maitred.routing import RoutingConfig as RoutingConfig
from maitred.sim import ClusterConfig as ClusterConfig
from maitred.sim import Outcome as Outcome
from maitred.sim import Results as Results
from maitred.study.candidate import Candidate as Candidate
from maitred.study.capacity import CapacityResult as CapacityResult
from maitred.study.capacity import capacity as capacity
from maitred.study.compare import compare as compare
from maitred.study.compare import compare_results as compare_results
from maitred.study.comparison import Comparison as Comparison
from maitred.study.live import bench as bench
from maitred.study.sweep import SweepResult as SweepResult
from maitred.study.sweep import sweep as sweep
from maitred.workload import Job as Job
from maitred.workload import Workload as Workload
from maitred.workload import open_trace as open_trace
from maitred.workload import synthetic as synthetic
from maitred.workload.load import Load as Load

__version__: str
__all__: list[str]

def is_compiled() -> bool:
    """Whether the hot modules of a simulation are compiled (`make compile`)."""
