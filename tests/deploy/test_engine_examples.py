"""examples/engines: configurations for each engine that `maitred check` takes without a warning, and that keep the class."""

from __future__ import annotations

from pathlib import Path

import pytest

from maitred.config import ConfigSources
from maitred.core.request import PriorityClass
from maitred.routing import Signals

FILES = sorted((Path(__file__).parents[2] / "examples" / "engines").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_is_right(path: Path) -> None:
    sources = ConfigSources(file=path, env={})
    assert sources.problems() == []
    config = sources.load()
    assert [*config.admission.warnings(), *config.routing.warnings(Signals.CACHES)] == []
    assert config.admission.mode == "priority"
    assert config.admission.class_rules(PriorityClass.BULK).queue_size == 4096
    assert config.gateway.forward_priority == {"vllm": "vllm", "sglang": "sglang"}.get(path.stem, "off")


def test_each_engine_has_one() -> None:
    assert [path.stem for path in FILES] == ["sglang", "tensorrt-llm", "vllm"]
