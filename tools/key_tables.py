"""The tables of docs/config.md: every key of a section with its default and its text, from the config structs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from maitred.admission.terms.config import ClassConfig, TenantPolicy
from maitred.admission.terms.presets import Flavour, preset_of
from maitred.config.root import Config, default_of, field_docs
from maitred.core.request import PriorityClass
from maitred.core.yaml_schema import struct_types

_CLASSES = sorted(PriorityClass, reverse=True)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
"""A text that YAML would take for a number without quotes."""
_FILE = re.compile(r"docs/(\w+\.md)(#[\w-]+)?")


def key_table(section: str) -> list[list[str]]:
    """Return the cells of the table of a section, its heading first. `CLASS` stands for a class, `TENANT` for a tenant."""
    name, _, flavour = section.partition(" under flavour ")
    if name.endswith("CLASS"):
        return _class_table("smg" if flavour == "smg" else "maitred", with_texts=not flavour)
    return [["key", "default", "meaning"], *_keys(_section(section.split(".")))]


def _section(path: list[str]) -> type[msgspec.Struct]:
    """Return the struct of a section. The last part of `path` may be a tag, as in `instance.latency.linear`."""
    if path[-1] == "TENANT":
        return TenantPolicy
    kinds: list[type[msgspec.Struct]] = [Config]
    for name in path:
        fields = [field for kind in kinds for field in msgspec.structs.fields(kind) if field.encode_name == name]
        tagged = [kind for kind in kinds if kind.__struct_config__.tag == name]
        kinds = tagged or [kind for field in fields for kind in struct_types(field.type)]
    return kinds[0]


def _keys(section: type[msgspec.Struct]) -> Iterator[list[str]]:
    texts, tag = field_docs(section), section.__struct_config__.tag
    if tag is not None:
        about = (inspect.getdoc(section) or "").partition("\n\n")[0].replace("\n", " ")
        yield [f"`{section.__struct_config__.tag_field}`", f"`{tag}`", about]
    for field in msgspec.structs.fields(section):
        default = default_of(field)
        if not isinstance(default, msgspec.Struct):
            yield [f"`{field.encode_name}`", _as_yaml(default), _FILE.sub(r"[\1](\1\2)", texts[field.name])]


def _class_table(flavour: Flavour, *, with_texts: bool) -> list[list[str]]:
    texts = field_docs(ClassConfig)
    rows = [["key", *(c.label for c in _CLASSES), *(["meaning"] if with_texts else [])]]
    for key in ClassConfig.__struct_fields__:
        values = [_as_yaml(getattr(preset_of(flavour).classes[c], key)) for c in _CLASSES]
        rows.append([f"`{key}`", *values, *([texts[key]] if with_texts else [])])
    return rows


def _as_yaml(value: Any) -> str:
    plain = msgspec.to_builtins(value)
    is_word = isinstance(plain, str) and bool(plain) and not _NUMBER.fullmatch(plain)
    return f"`{plain if is_word else msgspec.json.encode(plain).decode().replace(',', ', ')}`"
