"""Everywhere a configuration may be said: two files, the environment and flags, later ones over earlier ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from maitred.config.bundle import Bundle
from maitred.config.merged import Merged
from maitred.config.root import REGISTERED, Config
from maitred.config.sources import from_environment, from_flags
from maitred.errors import ConfigError
from maitred.reading.document import Document

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """Where to look. Every `load` reads the files anew, and keeps nothing."""

    file: Path | None = None
    admission_file: Path | None = None
    """The section `admission` in a file of its own, as SMG has it."""
    policy_file: Path | None = None
    """A policy bundle of BLIS's."""
    env: Mapping[str, str] = NOTHING
    flags: Mapping[str, object] = NOTHING
    """Values by dotted key; None: not given."""
    flag_names: Mapping[str, str] = NOTHING
    """What a flag is called that is not called after its key, by dotted key."""
    admission_keys: frozenset[str] | None = None
    """Those of the section `admission` in the main file that count; None: all of them."""

    def load(self) -> Config:
        """What all of them say together. Raises ConfigError for the first thing that is wrong."""
        return self.read().value()

    def problems(self) -> Sequence[ConfigError]:
        """Everything that is wrong. Raises ConfigError if a file cannot be read as YAML."""
        return self.read().problems()

    def read(self) -> Merged[Config]:
        """What is said, before it is judged. Raises ConfigError if a file cannot be read as YAML."""
        settings = [*from_environment(Config, self.env), *from_flags(self.flags, self.flag_names)]
        return Merged(Config, [*self._documents()], settings, REGISTERED)

    def _documents(self) -> Iterator[Document]:
        if self.file is not None:
            main = Document.read(self.file)
            yield main if self.admission_keys is None else main.only("admission", self.admission_keys)
        if self.admission_file is not None:
            yield Document.read(self.admission_file, section="admission")
        if self.policy_file is not None:
            yield Bundle.read(self.policy_file)
