"""Calibration: latency models from measurements, and the error of predictions.

    measurements.py   measured steps and timelines of requests, as files
    importers.py      what engines and benchmarks write by themselves
    fitting.py        latency models from steps and timelines, and the file and the chart of a fitted model
    regression.py     least squares without negative coefficients, and without the influence of a few measurements
    residuals.py      how good a fit is, with and without the noise of single steps
    outside.py        what a request waits outside the engine's steps
    layer_profile.py  a step table from the profile of single layers
    measured_run.py   a folder with a configuration, a layer profile and the timeline of a real engine
    validation.py     the error of a simulation against a timeline

A fit is judged by relative errors, because a model should be right within some percent at every size of a step.
"""

from __future__ import annotations
