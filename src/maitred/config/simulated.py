"""A configuration as a simulation reads it."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from maitred.config.merged import Merged
from maitred.config.root import Config

C = TypeVar("C", bound=Config)


def simulated(read: Merged[C]) -> C:
    """Who says nothing of admission wants none; who says how many slots there are wants classes.

    Raises ConfigError for the first thing that is wrong.
    """
    config = read.value()
    if read.says("admission", "mode"):
        return config
    mode = "off" if config.cluster.capacity is None else "priority"
    return replace(config, admission=replace(config.admission, mode=mode))
