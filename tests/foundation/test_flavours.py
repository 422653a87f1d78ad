"""The flavours of other systems: admission and programs by themselves have only their own, and who imports a world has all."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
from maitred.admission import AdmissionConfig
from maitred.programs import ProgramsConfig

for make in (
    lambda: len(AdmissionConfig(flavour="smg").preset.classes),
    lambda: ProgramsConfig(flavour="thunderagent").estimator,
):
    try:
        print(make())
    except ValueError as error:
        print(error)
"""


def flavours_after(imported: str) -> list[str]:
    """Return what a process that imports this makes of a flavour of admission and of one of programs."""
    ran = subprocess.run([sys.executable, "-c", f"{imported}\n{SCRIPT}"], capture_output=True, text=True, check=False)
    assert ran.stderr == ""
    return ran.stdout.splitlines()


@pytest.mark.parametrize(
    "imported",
    [
        "import maitred; maitred.AdmissionConfig",
        "import maitred; maitred.simulate",
        "import maitred.config",
        "import maitred.replay",
        "import maitred.sim",
        "import maitred.testing",
        "import maitred.plugins.vllm.config",
    ],
)
def test_a_world_knows_those_of_other_systems(imported: str) -> None:
    assert flavours_after(imported) == ["4", "fixed"]


def test_by_themselves_admission_and_programs_have_only_their_own() -> None:
    admission, programs = flavours_after("")
    assert admission.startswith("there is no flavour 'smg' among maitred (import maitred.compat")
    assert programs.startswith("there is no flavour 'thunderagent' among ours (import maitred.compat")
