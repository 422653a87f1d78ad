"""The one registry of plug-ins: policies of every kind, by the name that users type.

A kind (wait queue order, router, scorer, latency model, ...) is a `Registry`. A policy gets into it in one of three ways:

    in the package of its kind    a module there holds `@SCHEDULERS.register("sjf")` above a class. No list names the module:
                                  the package is searched when a name is first looked up; packages that hold policies
                                  of many kinds (`search_last`: `maitred.compat`) come after those of the kind
    as module:Class               a class in a file of the working directory, or in an installed package
    as an entry point             of the kind's group, in an installed distribution

All three are looked up alike, and take parameters alike: those of the constructor, by the annotations there.

    class Bounded:
        def __init__(self, policy: QueuePolicy, max_wait: float = 10.0, *, rng: Random) -> None: ...

    bounded(vtc(lpm, slack=20000), max_wait=5)

If the type of a parameter is the protocol of a kind, it takes a policy of that kind: `policy` is what the registry of queue
policies makes of `vtc(lpm, slack=20000)`. Numbers, words, true and false, and lists of them are converted and checked. A
parameter of a type or a name for which the maker of the policy supplies the value (`defaults`, here the `Random` of the run)
cannot be written, and is not listed. Everything is checked by making the policy once when its name is looked up, hence where a
configuration is read.

Classes in modules that are compiled with mypyc cannot be registered, because their constructors have no annotations.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache, lru_cache, partial
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Final, Generic, TypeVar, get_args, get_type_hints

import msgspec

from maitred.core.errors import ConfigError, describe_expected, nearest_name_hint
from maitred.core.imports import import_modules, imported
from maitred.core.policy_spec import USAGE, PolicySpec, Value, parse_spec, word_of

T = TypeVar("T")
Factory = Callable[..., T]

NOT_SAID: Final = "not documented"
_OF_YOUR_OWN: Final = "write one of your own as module:Class, of a file in the working directory or of an installed package"
_OF_OTHERS: Final = "import maitred.compat for those of other systems"
_SEARCHED_LAST: Final[list[str]] = []
"""Packages in which there may be policies of any kind."""
_KINDS: Final[dict[type, Registry[Any]]] = {}
"""The registry of the policies that a parameter of this type takes."""


def search_last(package: str) -> None:
    """Have the modules of `package` searched for policies of every kind, after those of the kind's own packages."""
    _SEARCHED_LAST.append(package)


@cache
def _installed(group: str, _path: tuple[str, ...]) -> EntryPoints:
    """Return the entry points of the distributions that are installed along `sys.path`, in a process the same from the first
    look on: to read the files of all of them takes tens of milliseconds."""
    return entry_points(group=group)


class Registry(Generic[T]):
    """The policies of one kind: classes, or functions that make them."""

    def __init__(
        self,
        kind: str,
        protocol: type[Any],
        *,
        group: str,
        packages: Sequence[str] = (),
        methods: Sequence[str] = (),
        bases: Sequence[type[Any]] = (),
        defaults: Mapping[Any, Any] | None = None,
        flag: str = "",
        headings: Mapping[str, str] | None = None,
    ) -> None:
        """`kind` is what messages call such a policy, `protocol` its type, `group` that of its entry points. The modules of
        `packages` are searched. A class named by its path must have the `methods`, and one of the `bases` if there are any.
        `defaults` are, by type or by the name of a parameter, stand-ins for what the maker of a policy supplies: with them a
        policy is made to check its parameters. `flag` is where users write it. `headings` are those of the table that lists the
        kind, each by the field of a policy's `about` that is below it."""
        for method in methods:
            getattr(protocol, method)  # a name that the protocol does not have is a slip
        self.kind = kind
        self.flag = flag
        self.headings = headings or {"summary": "what it does"}
        self.group = group
        self.methods = methods
        self._bases = tuple(bases)
        self.defaults = defaults or {}
        self._packages = packages
        self._searched = 0
        """How many of the packages have been searched, those that are searched last included."""
        self._known: dict[str, Factory[T]] = {}
        _KINDS[protocol] = self

    def register(self, name: str) -> Callable[[Factory[T]], Factory[T]]:
        """Decorate a class to make it known as `name`. Raises ValueError if the name is taken, and TypeError if the constructor
        of the class cannot be read."""

        def add(factory: Factory[T]) -> Factory[T]:
            if name in self._known:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            if not _has_annotations(factory):
                raise TypeError(f"{self.kind} {name!r} has no annotations: a compiled module cannot register policies")
            self._known[name] = factory
            return factory

        return add

    def find(self, name: str) -> Factory[T]:
        """Return the class called `name`, which is no spec: without parameters. Raises ConfigError with the nearest name."""
        if ":" in name:
            return self._by_path(name)
        if self._search_for(name):
            return self._known[name]
        for point in self._entry_points():
            if point.name == name:
                return self._checked(self._load(name, point.load), name)
        raise ConfigError(f"unknown {self.kind} {name!r}", hint=self._hint_for(name))

    def _hint_for(self, name: str) -> str:
        """Return the hint for an unknown name: what may be written in its place."""
        hint = nearest_name_hint(name, self)
        is_near = hint.startswith("did you mean")
        if not is_near:
            hint = f"{hint}; {_OF_YOUR_OWN}"
        if _SEARCHED_LAST:
            return hint
        return f"{hint} {_OF_OTHERS}" if is_near else f"{hint}; {_OF_OTHERS}"

    def get(self, spec: str, defaults: Mapping[Any, Any] | None = None) -> Factory[T]:
        """Return the maker of the policies that `spec` describes: the class itself where there are no parameters to give.

        Parameters of the types in `defaults` have these values where the spec leaves them out. `_Arguments` checks their names
        and types; one policy is made, because only its constructor knows the ranges, and thrown away. Raises ConfigError for
        whatever is wrong with the name or its parameters.
        """
        return self._of(parse_spec(spec, self.kind), self.defaults if defaults is None else defaults)

    def create(self, spec: str, defaults: Mapping[Any, Any] | None = None) -> T:
        """Return a new policy. Raises ConfigError for a wrong name, a wrong parameter (`_Arguments`) or a value out of range.
        One more is made to check that (`get`), so a constructor must have no side effects."""
        return self.get(spec, defaults)()

    def built_in(self) -> Mapping[str, Factory[T]]:
        """Return the policies that the modules of the kind's own packages register, by name."""
        for package in self._packages:
            import_modules(package)
        return self._known

    def usage(self, name: str) -> str:
        """Return the name with the parameters that users may write, and their defaults; or its `syntax`, where it has one."""
        found = self.find(name)
        if syntax := getattr(found, "syntax", ""):
            return str(syntax)
        written = [
            parameter.name if parameter.default in (parameter.empty, None) else f"{parameter.name}={_shown(parameter.default)}"
            for parameter in parameters(found, self.defaults).values()
        ]
        return f"{name}({', '.join(written)})" if written else name

    def describe(self, spec: str) -> dict[str, str]:
        """Return the description of a policy, by heading: in the fields of its `about`, or its own, else in its docstring."""
        made = self.find(spec) if parse_spec(spec, self.kind).is_plain else self.create(spec)
        about = getattr(made, "about", made)
        cells = [str(_shown(getattr(about, field, ""))).rstrip(".") or NOT_SAID for field in self.headings]
        if cells[0] == NOT_SAID:
            cells[0] = _first_sentence(made) or NOT_SAID
        return dict(zip(self.headings.values(), cells, strict=True))

    def __iter__(self) -> Iterator[str]:
        """Return an iterator of all names, in alphabetical order."""
        self._search_for(None)
        return iter(sorted({*self._known, *(point.name for point in self._entry_points())}))

    def __contains__(self, name: object) -> bool:
        return (isinstance(name, str) and self._search_for(name)) or any(p.name == name for p in self._entry_points())

    def _of(self, spec: PolicySpec, defaults: Mapping[Any, Any]) -> Factory[T]:
        found = self.find(spec.word)
        name = f"{self.kind} {spec.word!r}"
        factory = partial(found, **_Arguments(name, found, defaults).of(spec))
        # Made once and dropped, because only the constructor knows the ranges of its parameters.
        _made(name, factory)
        return factory if factory.keywords else found

    def _search_for(self, name: str | None) -> bool:
        """Import the modules in which policies of this kind may be, until `name` is known. Returns whether it is."""
        # One by one, so that the policies of other systems are not imported for a name that is found before them.
        packages = (*self._packages, *_SEARCHED_LAST)
        while name not in self._known and self._searched < len(packages):
            self._searched += 1
            import_modules(packages[self._searched - 1])
        return name in self._known

    def _entry_points(self) -> Iterable[EntryPoint]:
        return _installed(self.group, tuple(sys.path))

    def _by_path(self, path: str) -> Factory[T]:
        name, _, attribute = path.partition(":")
        module = self._load(path, lambda: imported(name))
        if not hasattr(module, attribute):
            own = [known for known, value in vars(module).items() if isinstance(value, type) and value.__module__ == name]
            near = nearest_name_hint(attribute, [known for known in own if not self._missing(getattr(module, known))])
            hint = self._in_brackets(path) or near
            raise ConfigError(f"cannot load {self.kind} {path!r}: {name} has no {attribute!r}", hint=hint)
        return self._checked(getattr(module, attribute), path)

    def _load(self, name: str, load: Callable[[], Any]) -> Any:
        try:
            return load()
        except Exception as error:  # a module of the user's own may raise anything
            kind = "" if isinstance(error, ImportError | AttributeError | ValueError) else f"{type(error).__name__}: "
            hint = self._in_brackets(name) or _OF_YOUR_OWN
            raise ConfigError(f"cannot load {self.kind} {name!r}: {kind}{error}", hint=hint) from error

    def _in_brackets(self, path: str) -> str:
        """Return the hint for a path that is a known name with its parameters behind a colon, or nothing."""
        name, colon, given = path.partition(":")
        return f"did you mean '{name}({given})'?" if colon and given and name in self else ""

    def _missing(self, found: type) -> list[str]:
        """Return the methods of the kind that `found` does not have."""
        return [method for method in self.methods if not callable(getattr(found, method, None))]

    def _checked(self, found: Any, name: str) -> Factory[T]:
        is_base_missing = bool(self._bases) and not (isinstance(found, type) and issubclass(found, self._bases))
        if not isinstance(found, type) or self._missing(found) or is_base_missing:
            hint = f"a class with {' and '.join(f'{method}()' for method in self.methods)}" if self.methods else "a class"
            if self._bases:
                hint = f"a class that inherits from {' or '.join(base.__name__ for base in self._bases)}"
            raise ConfigError(f"{name!r} is no {self.kind}", hint=hint)
        return found


def _first_sentence(made: object) -> str:
    """Return the first sentence of its own docstring, and not of one that it inherits."""
    docstring = vars(made if isinstance(made, type) else type(made)).get("__doc__")
    paragraph = " ".join(inspect.cleandoc(docstring or "").partition("\n\n")[0].split())
    return re.split(r"\.(?:\s|$)", paragraph, maxsplit=1)[0]


def _shown(value: Any) -> Any:
    """Return a value as users write it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]" if len(value) < 4 else f"[{value[0]}, ...]"
    return value


class _Arguments:
    """The arguments of the constructor of a policy. `name` begins the messages."""

    def __init__(self, name: str, factory: Factory[Any], defaults: Mapping[Any, Any]) -> None:
        self._name, self._defaults = name, defaults
        self._types = _types(factory, name)
        self._parameters = parameters(factory, defaults)
        self._supplied = {name: defaults[kind] for name, kind in self._types.items() if _is_supplied(kind, defaults)}
        self._supplied |= {name: defaults[name] for name in _signature(factory).parameters if name in defaults}

    def of(self, spec: PolicySpec) -> dict[str, Any]:
        """Return the arguments. Raises ConfigError for a parameter that is unknown, given twice, missing or of another type."""
        given = dict(zip(self._parameters, spec.values, strict=False))
        if len(spec.values) > len(self._parameters):
            raise ConfigError(f"{self._name} takes no {word_of(spec.values[len(self._parameters)])!r}", hint=self._takes())
        for name, value in spec.named.items():
            if name not in self._parameters:
                hint = nearest_name_hint(name, self._parameters) if self._parameters else self._takes()
                raise ConfigError(f"{self._name} has no parameter {name!r}", hint=hint)
            if name in given:
                raise ConfigError(f"{self._name} is given {name!r} twice")
            given[name] = value
        values = {name: self._converted(name, value) for name, value in given.items()}
        return {**self._supplied, **self._defaults_without(values), **values}

    def _defaults_without(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values, by type, of the parameters that the spec leaves out. Raises ConfigError for one that has none."""
        filled = {}
        for name, parameter in self._parameters.items():
            # What the maker supplies for a type, such as the configured priority policy, counts before the default in the code.
            default = next((self._defaults[kind] for kind in self._kinds(name) if kind in self._defaults), None)
            if name not in values and default is not None:
                filled[name] = default
            elif name not in values and parameter.default is parameter.empty:
                raise ConfigError(f"{self._name} needs {name!r}", hint=self._takes())
        return filled

    def _converted(self, name: str, value: Value) -> Any:
        for kind in self._kinds(name):
            if kind in _KINDS and isinstance(value, PolicySpec):
                return _KINDS[kind]._of(value, self._defaults)()
        if isinstance(value, PolicySpec) and not value.is_plain:
            raise ConfigError(f"{self._name}: {name} takes no policy", hint=USAGE)
        plain = value.word if isinstance(value, PolicySpec) else [item.word for item in value]
        try:
            return msgspec.convert(plain, self._types.get(name, int | float | str | list[float | str]), strict=False)
        except msgspec.ValidationError as error:
            raise self._conversion_error(name, value, plain, str(error)) from error

    def _conversion_error(self, name: str, value: Value, plain: object, said: str) -> ConfigError:
        """Return the error for a parameter of which msgspec has `said` that its `value` is of another type."""
        words = [str(w.value) for kind in self._kinds(name) if isinstance(kind, type) and issubclass(kind, Enum) for w in kind]
        if words and isinstance(plain, str):
            return ConfigError(f"{self._name}: unknown {name} {plain!r}", hint=nearest_name_hint(plain, words))
        what = describe_expected(said).partition(", got")[0].replace("Expected", "expected").replace("Invalid", "invalid")
        return ConfigError(f"{self._name}: {name} is {word_of(value)!r}: {what}", hint=self._takes())

    def _kinds(self, name: str) -> tuple[Any, ...]:
        kind = self._types.get(name)
        return (kind,) if isinstance(kind, type) else get_args(kind)

    def _takes(self) -> str:
        if not self._parameters:
            return "it has no parameters"
        return f"its parameters: {', '.join(self._parameters)}"


def parameters(factory: Factory[Any], supplied: Collection[Any] = ()) -> dict[str, inspect.Parameter]:
    """Return the parameters of `factory` that users may write: all but those whose type or name is in `supplied`."""
    types = _types(factory, getattr(factory, "__name__", "policy"))
    return {
        name: parameter
        for name, parameter in _signature(factory).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and not (_is_supplied(types.get(name), supplied) or name in supplied)
    }


def _is_supplied(kind: Any, defaults: Collection[Any]) -> bool:
    return kind in defaults and kind not in _KINDS


def _types(factory: Factory[Any], name: str) -> dict[str, Any]:
    """Return the types of the parameters. Raises ConfigError for annotations that cannot be evaluated."""
    try:
        return _hints(factory)
    except NameError as error:
        hint = "import what annotations of the constructor name, and not under TYPE_CHECKING alone"
        raise ConfigError(f"the parameters of {name} cannot be read: {error}", hint=hint) from error


@lru_cache(maxsize=256)
def _hints(factory: Factory[Any]) -> dict[str, Any]:
    # Kept, as each instance of a fleet makes policies of its own, and to read annotations takes longer than all else in that.
    is_struct = isinstance(factory, type) and issubclass(factory, msgspec.Struct)
    return get_type_hints(factory if is_struct else _constructor(factory))


_signature = lru_cache(maxsize=256)(inspect.signature)


def _constructor(factory: Any) -> Any:
    return inspect.getattr_static(factory, "__init__") if isinstance(factory, type) else factory


def _has_annotations(factory: Any) -> bool:
    """Return whether the types of its parameters can be read, as they cannot in a compiled module."""
    made_by = _constructor(factory)
    return made_by is object.__init__ or hasattr(made_by, "__annotations__")


def _made(name: str, factory: Factory[T]) -> T:
    """Return a new policy. Raises ConfigError for whatever its constructor raises."""
    try:
        return factory()
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
    except Exception as error:  # a class of the user's own may raise anything
        raise ConfigError(f"{name} cannot be made: {type(error).__name__}: {error}") from error
