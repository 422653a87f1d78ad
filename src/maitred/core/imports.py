"""Modules that are imported by their names, to find the plug-ins in them."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Any


def imported(module: str) -> Any:
    """Import a module. The working directory counts, as it does for `python -m`, but nothing there hides an installed one."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if "" in sys.path or error.name != module.partition(".")[0]:
            raise
    # At the end, so that a file of the user cannot hide an installed package of the same name.
    sys.path.append("")
    return importlib.import_module(module)


def import_modules(package: str) -> None:
    """Import all modules of `package`, those of its subpackages too, so that they register what they hold."""
    try:
        found = importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        return
    for module in pkgutil.iter_modules(getattr(found, "__path__", ())):
        name = f"{package}.{module.name}"
        if module.ispkg:
            import_modules(name)
        else:
            importlib.import_module(name)
