"""vllm-dp: as vLLM chooses among its data-parallel engines."""

from __future__ import annotations

from maitred.contracts import InstanceView
from maitred.routing.policy import RouterInfo
from maitred.routing.scorers.scorer import SCORERS, LeastIsBest


@SCORERS.register("vllm-dp")
class VllmDp(LeastIsBest):
    """The same with `4 * waiting + running` (vLLM's data-parallel load balancer, BLIS `vllm-dp`)."""

    about = RouterInfo(
        line="(most - load) / (most - least), load = 4 * waiting + running; 1 if all are equal",
        complexity="O(n)",
        reads="waiting, running",
    )

    def count(self, view: InstanceView) -> int:
        return 4 * view.waiting + view.running
