"""Trace formats: one file each, registered under the prefix that users type (`azure:FILE`)."""

from __future__ import annotations

from maitred.workload.formats import azure as _azure
from maitred.workload.formats import blis as _blis
from maitred.workload.formats import maitred as _maitred
from maitred.workload.formats import mooncake as _mooncake

__all__: list[str] = []

del _azure, _blis, _maitred, _mooncake
