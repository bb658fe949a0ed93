"""Overlapping work on GPUs, beside PyTorch.

``diagnose`` says from a trace why a GPU idled; ``check_program`` finds races in a program of streams.
Neither needs a GPU, PyTorch or numpy.
"""

from sidestream import ray as ray
from sidestream._diagnosis import (
    Device,
    Diagnosis,
    Estimate,
    Evidence,
    Finding,
    Prediction,
    Replay,
    Steps,
    StreamLoad,
    TraceWarning,
)
from sidestream._pipeline import Choice, Pipeline, Stage, StageError
from sidestream._program import CheckReport, Lint, ProgramReport, Race, Refused, check_program
from sidestream._sidestream import DeviceError, ProgramError, TraceError, __version__
from sidestream._stream import Stream
from sidestream._together import Diagnoses, FailedTrace, Rank, Ranks, RankStep, diagnose

__all__ = [
    "CheckReport",
    "Choice",
    "Device",
    "DeviceError",
    "Diagnoses",
    "Diagnosis",
    "Estimate",
    "Evidence",
    "FailedTrace",
    "Finding",
    "Lint",
    "Pipeline",
    "Prediction",
    "ProgramError",
    "ProgramReport",
    "Race",
    "Rank",
    "RankStep",
    "Ranks",
    "Refused",
    "Replay",
    "Stage",
    "StageError",
    "Steps",
    "Stream",
    "StreamLoad",
    "TraceError",
    "TraceWarning",
    "__version__",
    "check_program",
    "diagnose",
]
