"""Variables of the environment: those that are for maitred begin with `MAITRED_`.

One that maitred does not read is no error, as other tools may have theirs. A misspelt one is worth a word, since nothing else
tells that it changes nothing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

PREFIX: Final = "MAITRED_"
_LEAST_SIMILAR: Final = 0.8
"""How much of a name is that of a variable which was meant: MAITRED_VLLM_MODEL is not MAITRED_ENGINE__MODEL."""
_OF_A_SERVICE: Final = re.compile(r"_SERVICE_(HOST|PORT\w*)$|_PORT_\d+_(TCP|UDP|SCTP)\w*$")
_URL_OF_A_SERVICE: Final = re.compile(r"(tcp|udp|sctp)://")


def misspelt_variables(env: Mapping[str, str], known: Collection[str]) -> Iterator[str]:
    """Yield a warning for each variable that is none of `known`, which have their prefix, and nearly has the name of one. Those
    that Kubernetes sets for services called maitred and maitred-gateway are left out."""
    names = [name.removeprefix(PREFIX) for name in known]
    for variable in sorted(env):
        if not variable.startswith(PREFIX) or variable in known:
            continue
        if _OF_A_SERVICE.search(variable) or _URL_OF_A_SERVICE.match(env[variable]):
            continue
        for near in difflib.get_close_matches(variable.removeprefix(PREFIX), names, n=1, cutoff=_LEAST_SIMILAR):
            yield f"{variable} changes nothing: no such variable is read (did you mean {PREFIX}{near}?)"
