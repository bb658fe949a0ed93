"""Overlapping work on GPUs, beside PyTorch.

``diagnose`` says from a trace why a GPU idled; ``check_program`` finds races in a program of streams.
Neither needs a GPU, PyTorch or numpy.
"""

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
from sidestream._prefetch import Prefetcher, PrefetchStatistics, prefetch
from sidestream._program import CheckReport, Lint, ProgramReport, Race, Refused, check_program
from sidestream._sidestream import DeviceArray, DeviceError, ProgramError, TraceError, __version__
from sidestream._stream import Stream

__all__ = [
    "CheckReport",
    "Device",
    "DeviceArray",
    "DeviceError",
    "Diagnosis",
    "Estimate",
    "Evidence",
    "Finding",
    "Lint",
    "Prediction",
    "PrefetchStatistics",
    "Prefetcher",
    "ProgramError",
    "ProgramReport",
    "Race",
    "Refused",
    "Replay",
    "Steps",
    "Stream",
    "StreamLoad",
    "TraceError",
    "TraceWarning",
    "__version__",
    "check_program",
    "diagnose",
    "prefetch",
]
