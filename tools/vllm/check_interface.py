"""Check that maitred's scheduler class fits a release of vLLM, without vLLM: from the sources in its wheel.

    python tools/vllm/check_interface.py vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl
    python tools/vllm/check_interface.py FOLDER            # one that holds vllm/, such as site-packages
    python tools/vllm/check_interface.py PATH --record tests/vectors/vllm_interface/0.33.json

Nothing is imported or run: both sides are read as syntax trees. Compared are

    what vLLM asks of a scheduler    the abstract methods of `SchedulerInterface`, each `self.scheduler.X(...)` of its engine
    what it asks of the wait queue   the abstract methods of `RequestQueue`, each `self.waiting.X(...)` of its scheduler
    what maitred's class relies on   the names that it imports, the methods that it stands around, the attributes that it reads
                                     of the scheduler, its configuration, requests and block pool

A method that is there must take the arguments of each call. What does not fit is printed, a line each, and the command ends
with 1. `--record` writes what was read of vLLM, which stands for the wheel from then on.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

Described: TypeAlias = dict[str, Any]
"""A class: `methods` by name, each with its `takes` and whether it is `abstract`, and `attributes`."""

PLUGIN = Path(__file__).resolve().parents[2] / "src/maitred/plugins/vllm"
CLASSES = {
    "SchedulerInterface": "vllm/v1/core/sched/interface.py",
    "Scheduler": "vllm/v1/core/sched/scheduler.py",
    "AsyncScheduler": "vllm/v1/core/sched/async_scheduler.py",
    "RequestQueue": "vllm/v1/core/sched/request_queue.py",
    "Request": "vllm/v1/request.py",
    "RequestStatus": "vllm/v1/request.py",
    "SchedulerConfig": "vllm/config/scheduler.py",
    "BlockPool": "vllm/v1/core/block_pool.py",
    "BlockHashToBlockMap": "vllm/v1/core/block_pool.py",
    "FullAttentionSpec": "vllm/v1/kv_cache_interface.py",
}
"""The classes of vLLM that are looked at."""
CALLS = {
    "scheduler": ("vllm/v1/engine/core.py", ("scheduler",)),
    "waiting": ("vllm/v1/core/sched/scheduler.py", ("waiting", "request_queue")),
}
"""Where vLLM calls a scheduler and its wait queue, and under which names."""


class Sources:
    """The files of a wheel, or of a folder that holds `vllm/`."""

    def __init__(self, path: Path) -> None:
        self._archive = zipfile.ZipFile(path) if path.is_file() else None
        self._folder = path

    def tree(self, name: str) -> ast.Module:
        """Return the syntax tree of a file. Raises OSError or KeyError if it is not there."""
        text = self._archive.read(name).decode() if self._archive else (self._folder / name).read_text()
        return ast.parse(text, name)

    def version(self) -> str:
        """Return the version in the name of the metadata, or "?" without it."""
        names = self._archive.namelist() if self._archive else [f"{path.name}/" for path in self._folder.iterdir()]
        found = (name.partition("/")[0].removesuffix(".dist-info") for name in names if ".dist-info/" in name)
        return next((name.partition("-")[2] for name in found if name.startswith("vllm-")), "?")


def read_interface(path: Path, plugin: Plugin) -> Described:
    """Return what is compared of a release of vLLM; from a file of `--record`, what was written."""
    if path.suffix == ".json":
        recorded: Described = json.loads(path.read_text())
        return recorded
    sources = Sources(path)
    return {
        "version": sources.version(),
        "classes": {name: describe(find_class(sources.tree(file), name)) for name, file in CLASSES.items()},
        "calls": {
            kind: sorted({json.dumps(call) for call in find_calls(sources.tree(file), names)})
            for kind, (file, names) in CALLS.items()
        },
        "names": [f"{module}.{name}" for module, name in plugin.imports() if has_name(sources, module, name)],
    }


def has_name(sources: Sources, module: str, name: str) -> bool:
    """Return whether a module of vLLM defines, or imports, `name`."""
    try:
        body = sources.tree(f"{module.replace('.', '/')}.py").body
    except (OSError, KeyError):
        return False
    defined = (node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    imported = (alias.asname or alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names)
    return name in {*defined, *imported}


def find_class(tree: ast.Module, name: str) -> ast.ClassDef:
    """Return the class `name`. Raises KeyError if there is none."""
    found = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    node = next(found, None)
    if node is None:
        raise KeyError(name)
    return node


def describe(node: ast.ClassDef) -> Described:
    """Return the methods and attributes of a class itself."""
    functions = [child for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)]
    methods = {function.name: describe_method(function) for function in functions}
    assigned = [child for child in node.body if isinstance(child, ast.Assign | ast.AnnAssign)]
    names = {target.id for child in assigned for target in targets_of(child) if isinstance(target, ast.Name)}
    for child in ast.walk(node):
        if isinstance(child, ast.Assign | ast.AnnAssign):
            names |= {target.attr for target in targets_of(child) if is_attribute_of(target, "self")}
    properties = {function.name for function in functions if "property" in decorators_of(function)}
    return {
        "methods": {name: method for name, method in sorted(methods.items()) if is_public(name) and name not in properties},
        "attributes": sorted(filter(is_public, names | properties)),
    }


def is_public(name: str) -> bool:
    return not name.startswith("_") or name.startswith("__")


def describe_method(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Described:
    """Return what calls a method takes: names of its arguments without `self`, how many have no default, and any more."""
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    required = len(names) - len(arguments.defaults)
    is_static = "staticmethod" in decorators_of(function)
    only = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {
        "abstract": "abstractmethod" in decorators_of(function),
        "names": names[not is_static :],
        "required": max(0, required - (not is_static)),
        "keywords": {argument.arg: default is None for argument, default in only},
        "any_more": [arguments.vararg is not None, arguments.kwarg is not None],
    }


def decorators_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    return [ast.unparse(decorator).rpartition(".")[2] for decorator in function.decorator_list]


def targets_of(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    """Return what an assignment gives a value to; the items of tuples one by one."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [item for target in targets for item in (target.elts if isinstance(target, ast.Tuple) else [target])]


def is_attribute_of(node: ast.AST, *names: str) -> bool:
    """Return whether `node` is `NAME.x`, or `self.NAME.x` where NAME is not `self`."""
    if not isinstance(node, ast.Attribute):
        return False
    owner = node.value
    if isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name) and owner.value.id == "self":
        return owner.attr in names
    return isinstance(owner, ast.Name) and owner.id in names


def find_calls(tree: ast.AST, names: tuple[str, ...]) -> Iterator[Described]:
    """Yield each call of a method of what has one of `names`, with its arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and is_attribute_of(node.func, *names):
            assert isinstance(node.func, ast.Attribute)
            keywords = sorted(keyword.arg for keyword in node.keywords if keyword.arg)
            yield {"method": node.func.attr, "positional": len(node.args), "keywords": keywords}


def takes(method: Described, positional: int, keywords: list[str]) -> bool:
    """Return whether a method can be called so."""
    names, (more_positional, more_keywords) = method["names"], method["any_more"]
    if positional > len(names) and not more_positional:
        return False
    if not more_keywords and not {*keywords} <= {*names[positional:], *method["keywords"]}:
        return False
    needed = {*names[positional : method["required"]]} | {name for name, needs in method["keywords"].items() if needs}
    return needed <= {*keywords}


class Plugin:
    """What maitred's scheduler class offers to vLLM and takes from it."""

    def __init__(self, folder: Path = PLUGIN) -> None:
        trees = {path.stem: ast.parse(path.read_text()) for path in folder.glob("*.py")}
        module = self._module = trees["scheduler"]
        self.scheduler = describe(find_class(module, "Scheduler"))
        self.queue = describe(find_class(trees["policy_queue"], "PolicyQueue"))
        self.reads = {
            "Request": self._protocol(trees["engine_request"], "VllmRequest"),
            "BlockPool": self._protocol(trees["block_pool_view"], "EngineBlockPool"),
            "BlockHashToBlockMap": self._protocol(trees["block_pool_view"], "EngineBlockMap"),
            "Scheduler": self._read_of("scheduler", "_scheduler", "self") - {*self.scheduler["methods"]},
            "SchedulerConfig": self._read_of("limits", "scheduler_config") | self._same_keys(),
            "RequestStatus": self._read_of("RequestStatus"),
        }
        """Attributes and methods, by class of vLLM."""

    def imports(self) -> Iterator[tuple[str, str]]:
        """Yield the modules of vLLM that are imported from, each with a name."""
        for node in ast.walk(self._module):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm."):
                yield from (((node.module or ""), alias.name) for alias in node.names)

    def overridden(self) -> set[str]:
        """Return the methods that call the one of vLLM by `super()`."""
        calls = (node.func for node in ast.walk(find_class(self._module, "Scheduler")) if isinstance(node, ast.Call))
        return {call.attr for call in calls if isinstance(call, ast.Attribute) and ast.unparse(call.value) == "super()"}

    @staticmethod
    def _protocol(tree: ast.Module, name: str) -> set[str]:
        described = describe(find_class(tree, name))
        return {*described["methods"], *described["attributes"]}

    def _read_of(self, *names: str) -> set[str]:
        """Return the attributes that are read of what has one of `names`, except those that maitred's class sets itself."""
        own = {name for name in self.scheduler["attributes"] if name != "waiting"}
        nodes = (node for node in ast.walk(self._module) if is_attribute_of(node, *names))
        read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        return {name for name in read if name not in own and not name.startswith("_")}

    def _same_keys(self) -> set[str]:
        assigned = (node for node in self._module.body if isinstance(node, ast.Assign))
        keys = next(node.value for node in assigned if ast.unparse(node.targets[0]) == "SAME_KEYS")
        return set(ast.literal_eval(keys))


def find_problems(interface: Described, plugin: Plugin) -> Iterator[str]:
    """Yield what does not fit, a line each."""
    classes = interface["classes"]
    inherited = classes["SchedulerInterface"]["methods"] | classes["Scheduler"]["methods"]
    abstract = {name for name, method in classes["SchedulerInterface"]["methods"].items() if method["abstract"]}
    whole = classes["Scheduler"]["methods"] | plugin.scheduler["methods"]
    for name in sorted(abstract - whole.keys()):
        yield f"SchedulerInterface.{name} is abstract, and neither vLLM's Scheduler nor maitred's has it"
    yield from _uncallable(interface["calls"]["scheduler"], inherited | plugin.scheduler["methods"], "the scheduler")
    queue = plugin.queue["methods"]
    for name in sorted(classes["RequestQueue"]["methods"].keys() - queue.keys()):
        yield f"RequestQueue.{name} is asked of a wait queue, and maitred's PolicyQueue has no such method"
    yield from _uncallable(interface["calls"]["waiting"], queue, "the wait queue")
    for name in sorted(plugin.overridden() - inherited.keys() - {"__new__"}):
        yield f"maitred's Scheduler stands around Scheduler.{name}, which vLLM does not have"
    for name, read in plugin.reads.items():
        has = {*classes[name]["methods"], *classes[name]["attributes"]}
        if name == "Scheduler":
            has |= {*inherited}
        yield from (f"maitred reads {name}.{missing}, which vLLM does not have" for missing in sorted(read - has))
    asked = {f"{module}.{name}" for module, name in plugin.imports()}
    yield from (f"maitred imports {name}, which vLLM does not have" for name in sorted(asked - {*interface["names"]}))


def _uncallable(calls: list[str], methods: Described, owner: str) -> Iterator[str]:
    """Yield a line for each call that no method takes."""
    for call in map(json.loads, calls):
        name, positional, keywords = call["method"], call["positional"], call["keywords"]
        shown = f"{name}({', '.join([*['_'] * positional, *(f'{keyword}=_' for keyword in keywords)])})"
        if name not in methods:
            yield f"vLLM calls {shown} of {owner}, which has no such method"
        elif not takes(methods[name], positional, keywords):
            yield f"vLLM calls {shown} of {owner}, which takes {', '.join(methods[name]['names']) or 'nothing'}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Check that maitred's scheduler class fits a release of vLLM.")
    parser.add_argument("path", type=Path, help="a wheel, a folder with vllm/, or a file of --record")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what was read of vLLM")
    options = parser.parse_args()
    try:
        plugin = Plugin()
        interface = read_interface(options.path, plugin)
    except (OSError, KeyError, SyntaxError, ValueError, zipfile.BadZipFile) as error:
        sys.exit(f"{options.path}: no sources of vLLM as they are known here: {type(error).__name__}: {error}")
    if options.record:
        options.record.write_text(json.dumps(interface, indent=1) + "\n")
    problems = list(find_problems(interface, plugin))
    for problem in problems:
        print(f"vLLM {interface['version']}: {problem}")
    if problems:
        sys.exit(1)
    print(f"vLLM {interface['version']}: maitred's scheduler class fits")


if __name__ == "__main__":
    main()
