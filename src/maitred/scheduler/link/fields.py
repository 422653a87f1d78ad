"""Numbers in messages. What is out of range makes no sense, and no message with it is read."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from maitred.core.request import PriorityClass

_MOST: Final = 1 << 60
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=_MOST)]
"""A count, or -1 for none."""
Age: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
"""µs."""
ClassNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=int(min(PriorityClass)), le=int(max(PriorityClass)))]
Real: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
