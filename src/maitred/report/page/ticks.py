"""Where an axis has its ticks, and how they are labelled."""

from __future__ import annotations

from math import ceil, floor, log10

_NEAT = (1, 2, 2.5, 5, 10)
_THOUSAND = 1000
_CLOSE = 8


def neat(low: float, high: float, about: int) -> list[float]:
    """About so many multiples of a neat step, between `low` and `high`."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in _NEAT if factor * power >= rough * 0.999)
    return [number * step for number in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def decades(low: float, high: float, about: int) -> list[float]:
    """Powers of ten between `low` and `high`, both above 0, with 2 and 5 between them if there is room; or neat steps."""
    if high < low * _CLOSE:
        return neat(low, high, about)
    first, last = floor(log10(low)), ceil(log10(high))
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
        inside = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(inside) <= about:
            return inside
    stride = ceil(len(inside) / about)
    return inside[::stride]


def label(value: float) -> str:
    """Short: 12, 0.5, 20k, 3M."""
    for unit, name in ((_THOUSAND**3, "G"), (_THOUSAND**2, "M"), (_THOUSAND, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def percent(value: float) -> str:
    """Of a share of 1."""
    return f"{value * 100:.3g} %"
