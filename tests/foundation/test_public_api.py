from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import maitred


def test_every_public_name_is_there() -> None:
    for name in maitred.__all__:
        assert getattr(maitred, name) is not None
    assert set(maitred.__all__) <= set(dir(maitred))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(maitred, "nothing")  # noqa: B009 - mypy would rightly refuse the plain form


def test_importing_maitred_imports_no_heavy_library() -> None:
    code = "import sys, maitred; print(sorted({'numpy', 'asyncio', 'httptools', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_stub_types_what_the_module_offers() -> None:
    stub = Path(maitred.__file__ or "").with_suffix(".pyi").read_text()
    assert sorted(line.split(" as ")[1] for line in stub.splitlines() if " as " in line) == sorted(maitred.__all__)
