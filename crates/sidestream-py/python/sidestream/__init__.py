"""Overlapping work on GPUs, beside PyTorch.

``diagnose`` says from a trace why a GPU idled; ``check_program`` finds races in a program of streams.
Neither needs a GPU, PyTorch or numpy.
"""

from sidestream._check import CheckedRace, CheckedRun, NamedStream, Place, Remark, Side, check
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
    diagnose,
)
from sidestream._program import CheckReport, Lint, ProgramReport, Race, Refused, check_program
from sidestream._sidestream import ProgramError, RaceError, TraceError, __version__

__all__ = [
    "CheckReport",
    "CheckedRace",
    "CheckedRun",
    "Device",
    "Diagnosis",
    "Estimate",
    "Evidence",
    "Finding",
    "Lint",
    "NamedStream",
    "Place",
    "Prediction",
    "ProgramError",
    "ProgramReport",
    "Race",
    "RaceError",
    "Refused",
    "Remark",
    "Replay",
    "Side",
    "Steps",
    "StreamLoad",
    "TraceError",
    "TraceWarning",
    "__version__",
    "check",
    "check_program",
    "diagnose",
]
