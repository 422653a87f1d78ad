"""Calibration: latency models from measurements, and the error of predictions.

    measurements.py   measured steps and timelines of requests, as files
    importers.py      what engines and benchmarks write by themselves
    fitting.py        coefficients by least squares, the residuals, and the file of a fitted model
    least_squares.py  non-negative least squares; robust.py: without the influence of a few measurements
    equal_steps.py    how good a fit is, without the noise of single steps; residual_plot.py: a chart of its residuals
    outside.py        what a request waits outside the engine's steps
    table_fit.py      a step table from measured steps
    layer_profile.py  a step table from the profile of single layers
    measured_run.py   a folder with a configuration, a layer profile and the timeline of a real engine
    validation.py     the error of a simulation against a timeline

A fit is judged by relative errors, because a model should be right within some percent at every size of a step.
"""

from __future__ import annotations
