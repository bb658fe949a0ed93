"""Stages of a model that run concurrently, on separate streams or as CUDA graphs, if a measurement shows that
this is faster.
"""

from __future__ import annotations

from sidestream._pipeline._choice import Choice
from sidestream._pipeline._pipeline import Pipeline, PipelineStatistics
from sidestream._pipeline._stage import Stage, StageError
from sidestream._pipeline._sweep import Sweep, SweepRow

__all__ = ["Choice", "Pipeline", "PipelineStatistics", "Stage", "StageError", "Sweep", "SweepRow"]
