"""Overlapping work on GPUs, beside PyTorch.

``diagnose`` says from a trace why a GPU idled; ``check_program`` finds races in a program of streams.
Neither needs a GPU, PyTorch or numpy.
"""

from sidestream._benchmark import Benchmark, Roofline, benchmark
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
from sidestream._overlap import Arrangement, Overlap, overlap
from sidestream._profile import Profile, profile
from sidestream._program import CheckReport, Lint, ProgramReport, Race, Refused, check_program
from sidestream._sidestream import DeviceError, ProgramError, TraceError, __version__
from sidestream._stream import Event, Stream

__all__ = [
    "Arrangement",
    "Benchmark",
    "CheckReport",
    "Device",
    "DeviceError",
    "Diagnosis",
    "Estimate",
    "Event",
    "Evidence",
    "Finding",
    "Lint",
    "Overlap",
    "Prediction",
    "Profile",
    "ProgramError",
    "ProgramReport",
    "Race",
    "Refused",
    "Replay",
    "Roofline",
    "Steps",
    "Stream",
    "StreamLoad",
    "TraceError",
    "TraceWarning",
    "__version__",
    "benchmark",
    "check_program",
    "diagnose",
    "overlap",
    "profile",
]
