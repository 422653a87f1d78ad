"""The rules of instances, by instance flavour: the one place where rules are chosen by `InstanceConfig.flavour`.

What a driver of instances must know of an instance flavour is here as data, so that nothing else asks which one it is. (Which
keys of the configuration an instance flavour takes, and which defaults it gives them: `instance/flavours.py`.) Two other keys
have the same name and are not read here: `AdmissionConfig.flavour` (`admission/terms/presets.py`) and `ProgramsConfig.flavour`
(`programs/rules.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

import msgspec

from maitred.compat.blis.instance import BlisInstance, blis_parts
from maitred.compat.sglang.parts import sglang_parts
from maitred.instance import Instance, InstanceConfig
from maitred.instance.batch_former import EngineParts, standard_parts
from maitred.instance.flavours import FlavourName


class InstanceRules(msgspec.Struct, frozen=True):
    """How the instances of one flavour are made, and how their driver treats them."""

    new_instance: Callable[[InstanceConfig, Random], Instance]
    """Makes an instance with the clock of its flavour. Raises ConfigError for an unknown scheduler."""
    new_parts: Callable[[InstanceConfig], EngineParts]
    """Makes the batch former and the KV memory, for an instance that is stepped in real time."""
    starts_in_turn: bool = False
    """Whether a step begins when it is the instance's turn at an instant, and not when all inputs of the instant are in. Then
    its next event must be asked for after each input."""
    first_views_are_blank: bool = False
    """Whether routers see idle instances until the first interval between two snapshots has passed."""
    every_delay_queues: bool = False
    """Whether a request passes admission, routing and the way to its wait queue as an event each, even where that takes no
    time; and whether only its instance finds out that it can never run."""
    disaggregation_problem: str = ""
    """Why prompts and answers cannot be computed in different instances; empty if they can."""


def _sglang_instance(config: InstanceConfig, rng: Random) -> Instance:
    return Instance(config, rng, sglang_parts(config))


_NO_TRANSFERS: Final = "batching does not take over KV from other instances yet"
_STANDARD: Final = InstanceRules(Instance, standard_parts)
_RULES: Final[Mapping[FlavourName, InstanceRules]] = {
    "vllm": _STANDARD,
    "sglang": InstanceRules(_sglang_instance, sglang_parts, disaggregation_problem=_NO_TRANSFERS),
    "trtllm": _STANDARD,
    "maitred": _STANDARD,
    "blis": InstanceRules(
        BlisInstance,
        blis_parts,
        starts_in_turn=True,
        first_views_are_blank=True,
        every_delay_queues=True,
        disaggregation_problem="its transfers would begin before prefill ends",
    ),
}


def instance_rules(config: InstanceConfig) -> InstanceRules:
    """Return the rules of the flavour of `config`."""
    return _STANDARD if config.flavour is None else _RULES[config.flavour]


def new_instance(config: InstanceConfig, rng: Random) -> Instance:
    """Return an instance of the flavour of `config`. Raises ConfigError for an unknown scheduler."""
    return instance_rules(config).new_instance(config, rng)
