"""Variables of the environment: those that are for maitred begin with `MAITRED_`.

One that maitred does not read is no error, as other tools may have theirs. It is worth a word, since nothing else tells that it
changes nothing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

PREFIX: Final = "MAITRED_"
_LEAST_SIMILAR: Final = 0.8
"""How much of a name is that of a variable which was meant: MAITRED_VLLM_MODEL is not MAITRED_ENGINE__MODEL."""
_READ_ELSEWHERE: Final = frozenset({"MAITRED_HEALTH_URL", "MAITRED_COMPILE"})
"""What the health check of the container and the build read."""
_OF_A_SERVICE: Final = re.compile(r"_SERVICE_(HOST|PORT\w*)$|_PORT_\d+_(TCP|UDP|SCTP)\w*$")
_URL_OF_A_SERVICE: Final = re.compile(r"(tcp|udp|sctp)://")


def unread_variables(env: Mapping[str, str], known: Collection[str]) -> Iterator[str]:
    """Yield a warning for each variable that is none of `known`, which have their prefix, with those of them that were perhaps
    meant. Those that Kubernetes sets for services called maitred and maitred-gateway are left out."""
    names = [name.removeprefix(PREFIX) for name in known]
    for variable in sorted(env):
        if not variable.startswith(PREFIX) or variable in known or variable in _READ_ELSEWHERE:
            continue
        if _OF_A_SERVICE.search(variable) or _URL_OF_A_SERVICE.match(env[variable]):
            continue
        rest = variable.removeprefix(PREFIX)
        near = difflib.get_close_matches(rest, names, n=1, cutoff=_LEAST_SIMILAR)
        near = near or sorted(name for name in names if name.endswith(f"__{rest}"))
        hint = f" (did you mean {' or '.join(PREFIX + name for name in near)}?)" if near else ""
        yield f"{variable} changes nothing: no such variable is read{hint}"
