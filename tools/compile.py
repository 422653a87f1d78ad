"""Build hook of the wheel: the hot modules of a simulation and of the gateway are compiled with mypyc, if that is asked for.

    MAITRED_COMPILE=1 pip install .                 the same source, about twice as fast; `maitred --version` says "compiled"
    make compile                                    the same in a folder of its own, build/compiled, for tests and benchmarks

hatchling calls this hook for every wheel (pyproject.toml). Without MAITRED_COMPILE it does nothing: the wheel is pure Python.
With it, the modules that pyproject.toml names (`[tool.maitred] compiled`) get a compiled sibling in the wheel, which Python
prefers. They are compiled in a copy of the package: nothing in `src` changes, so compiled code that is older than its source
never runs by accident. Needs a C compiler and Python's headers, and two minutes of CPU.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH = "MAITRED_COMPILE"
SETTINGS = """\
[mypy]
follow_imports = silent
"""
"""mypyc needs the types; `make check` checks them strictly."""
WITHOUT_WARNING = "-Wno-misleading-indentation"
"""GCC looks up the source lines of each branch for this warning of -Wall, which is half of the time of compiling 400,000 lines
of generated C. The object file is the same."""
FAILED = f"not compiled: this needs a C compiler and Python's headers. maitred works without {SWITCH}, only slower."


def is_wanted() -> bool:
    """Whether the environment asks for compiled modules."""
    return os.environ.get(SWITCH, "") not in {"", "0"}


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled modules to a wheel."""

    PLUGIN_NAME = "custom"
    _folder: Path | None = None

    def dependencies(self) -> list[str]:
        """Return what the build needs: mypyc, and what it learns types from."""
        tools = ["mypy>=1.14", "setuptools>=65", "types-PyYAML>=6.0.12"]
        return [*tools, *self.metadata.core.dependencies] if is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and put what comes of it into the wheel. Raises SystemExit if that fails."""
        if not is_wanted():
            return
        if version == "editable":
            sys.exit(f"an editable install runs the sources as they are: leave {SWITCH} out, or install without --editable")
        self._folder = folder = Path(mkdtemp(prefix="maitred-compile-"))
        compile_modules(Path(self.root), folder)
        build_data["pure_python"], build_data["infer_tag"] = False, True
        for library in [path for path in folder.rglob("*") if path.suffix in {".so", ".pyd"}]:
            build_data["force_include"][str(library)] = library.relative_to(folder).as_posix()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the copy in which the modules were compiled."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def compile_modules(root: Path, folder: Path) -> None:
    """Copy the package of the project at `root` into `folder`, and compile its hot modules there. Raises SystemExit if that
    fails."""
    modules = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["maitred"]["compiled"]
    shutil.copytree(root / "src" / "maitred", folder / "maitred", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "mypyc.ini").write_text(SETTINGS)
    files = [f"maitred/{name.replace('.', '/')}.py" for name in modules]
    command = [sys.executable, "-m", "mypyc", "--config-file=mypyc.ini", *files]
    environment = {"MYPYC_OPT_LEVEL": "3"} | os.environ | {"CFLAGS": f"{os.environ.get('CFLAGS', '')} {WITHOUT_WARNING}"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(folder)
        sys.exit(f"{done.stdout}{done.stderr}\n{FAILED}")
    shutil.rmtree(folder / "build", ignore_errors=True)
