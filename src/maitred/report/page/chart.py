"""Chart: a panel as HTML, with curves as SVG that stretches to any width and labels as text that does not, and its axes.

The drawing has coordinates from 0 to 1000 in both directions and is stretched to its place (`preserveAspectRatio="none"`). So a
phone shows the same chart, narrower, with letters of the same size. `data-chart` holds the values that `script.js` shows under
the pointer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from math import ceil, floor, log10

import msgspec
import numpy as np

from maitred.report.panels import Floats, Panel

_NEAT = (1, 2, 2.5, 5, 10)
_THOUSAND = 1000
_CLOSE = 8
_SIDE = 1000
_TICKS = 5
_COLOURS = 6
_HEADROOM = 1.06
_TINY = 1e-3


def linear_ticks(low: float, high: float, about: int) -> list[float]:
    """Return about `about` multiples of a round step between `low` and `high`."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in _NEAT if factor * power >= rough * 0.999)
    return [number * step for number in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, about: int) -> list[float]:
    """Return powers of ten between `low` and `high`, both above 0, with 2 and 5 between if there is room; or linear ticks."""
    if high < low * _CLOSE:
        return linear_ticks(low, high, about)
    first, last = floor(log10(low)), ceil(log10(high))
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
        inside = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(inside) <= about:
            return inside
    stride = ceil(len(inside) / about)
    return inside[::stride]


def tick_label(value: float) -> str:
    """Return a short label, such as 12, 0.5, 20k, 3M."""
    for unit, name in ((_THOUSAND**3, "G"), (_THOUSAND**2, "M"), (_THOUSAND, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def percent_label(value: float) -> str:
    """Return a share of 1 in percent."""
    return f"{value * 100:.3g} %"


class _Axis(msgspec.Struct, frozen=True, kw_only=True):
    """An axis from `low` to `high`, with its ticks."""

    low: float
    high: float
    ticks: list[float]
    log: bool = False

    def at(self, values: Floats) -> Floats:
        """Return the places of these values on the axis, 0 to 1."""
        if self.log:
            low, high = log10(self.low), log10(self.high)
            return np.asarray((np.log10(np.maximum(values, self.low)) - low) / (high - low))
        return np.asarray((values - self.low) / (self.high - self.low))

    def one(self, value: float) -> float:
        return float(self.at(np.array([value]))[0])


def chart_html(panel: Panel) -> str:
    """Return the panel as a `figure` element."""
    x, y = _x_axis(panel), _y_axis(panel)
    shown = percent_label if panel.shares else tick_label
    return "".join(
        [
            f'<figure class="chart"><figcaption>{escape(panel.title)} <small>{escape(panel.y_label)}</small></figcaption>',
            _legend(panel),
            f'<div class="plot" role="img" aria-label="{escape(panel.about)}" data-chart=\'{_data(panel, x)}\'>',
            f'<svg viewBox="0 0 {_SIDE} {_SIDE}" preserveAspectRatio="none" aria-hidden="true">',
            *_grid(x, y),
            *_target(panel, x),
            *_shapes(panel, x, y),
            "</svg>",
            *_labels("y", "bottom", y, shown),
            *_labels("x", "left", x, tick_label),
            f'<span class="unit">{escape(panel.x_label)}</span>',
            "</div></figure>\n",
        ]
    )


def _x_axis(panel: Panel) -> _Axis:
    low = min(float(curve.x.min()) for curve in panel.curves)
    high = max(float(curve.x.max()) for curve in panel.curves)
    if not panel.log_x:
        return _Axis(low=0.0, high=high or 1.0, ticks=linear_ticks(0.0, high or 1.0, _TICKS))
    low, high = max(low, _TINY), max(high, 2 * _TINY)
    high = max(high, panel.target or 0)
    low, high = low / 1.1, max(high * 1.1, low * 2)
    return _Axis(low=low, high=high, ticks=log_ticks(low, high, _TICKS), log=True)


def _y_axis(panel: Panel) -> _Axis:
    if panel.shares:
        return _Axis(low=0.0, high=1.0, ticks=[0.0, 0.25, 0.5, 0.75, 1.0])
    tops = [curve.y if curve.high is None else curve.high for curve in panel.curves]
    high = max((float(top.max(initial=0)) for top in tops), default=0.0) * _HEADROOM or 1.0
    return _Axis(low=0.0, high=high, ticks=linear_ticks(0.0, high, _TICKS))


def _legend(panel: Panel) -> str:
    if len(panel.curves) < 2 and panel.curves[0].low is None:
        return '<div class="legend"></div>'
    keys = [f'<span class="key c{number % _COLOURS}">{escape(curve.label)}</span>' for number, curve in enumerate(panel.curves)]
    return f'<div class="legend">{"".join(keys)}</div>'


def _grid(x: _Axis, y: _Axis) -> Iterator[str]:
    across = "".join(f"M0 {_down(y.one(tick))}H{_SIDE}" for tick in y.ticks)
    along = "".join(f"M{_px(x.one(tick))} 0V{_SIDE}" for tick in x.ticks)
    yield f'<path class="grid" d="{across}{along}"/>'


def _target(panel: Panel, x: _Axis) -> Iterator[str]:
    if panel.target is not None:
        yield f'<path class="target" d="M{_px(x.one(panel.target))} 0V{_SIDE}"><title>SLO</title></path>'


def _shapes(panel: Panel, x: _Axis, y: _Axis) -> Iterator[str]:
    for number, curve in enumerate(panel.curves):
        at = x.at(curve.x)
        if curve.low is not None and curve.high is not None:
            there, back = _points(at, y.at(curve.high)), _points(at[::-1], y.at(curve.low)[::-1])
            yield f'<path class="band c{number % _COLOURS}" d="M{there}L{back}Z"/>'
        yield f'<path class="line c{number % _COLOURS}" d="M{_points(at, y.at(curve.y))}"/>'


def _points(x: Floats, y: Floats) -> str:
    return " ".join(f"{_px(one)} {_down(other)}" for one, other in zip(x.tolist(), y.tolist(), strict=True))


def _px(share: float) -> str:
    return f"{share * _SIDE:.1f}".removesuffix(".0")


def _down(share: float) -> str:
    return _px(1 - share)


def _labels(axis: str, side: str, scale: _Axis, shown: Callable[[float], str]) -> Iterator[str]:
    for tick in scale.ticks:
        yield f'<span class="{axis}" style="{side}:{scale.one(tick) * 100:.2f}%">{shown(tick)}</span>'


def _data(panel: Panel, x: _Axis) -> str:
    """Return the curves as JSON for use within single quotes."""
    curves = [{"label": curve.label, "x": _rounded(curve.x), "y": _rounded(curve.y)} for curve in panel.curves]
    data = {"low": x.low, "high": x.high, "log": panel.log_x, "shares": panel.shares, "unit": panel.x_label, "curves": curves}
    return escape(msgspec.json.encode(data).decode(), quote=True)


def _rounded(values: Floats) -> list[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]
