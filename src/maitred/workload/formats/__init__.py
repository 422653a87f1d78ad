"""Trace formats: one file each, registered under the prefix that users type (`azure:FILE`)."""

from __future__ import annotations

from maitred.workload.formats import agentic as _agentic
from maitred.workload.formats import aiperf as _aiperf
from maitred.workload.formats import azure as _azure
from maitred.workload.formats import bailian as _bailian
from maitred.workload.formats import blis as _blis
from maitred.workload.formats import blis_writer as _blis_writer
from maitred.workload.formats import burstgpt as _burstgpt
from maitred.workload.formats import maitred as _maitred
from maitred.workload.formats import mooncake as _mooncake
from maitred.workload.formats import timed_trace as _timed_trace

__all__: list[str] = []

del _agentic, _aiperf, _azure, _bailian, _blis, _blis_writer, _burstgpt, _maitred, _mooncake, _timed_trace
