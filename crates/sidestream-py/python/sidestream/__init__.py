"""Overlapping work on GPUs, beside PyTorch.

``prefetch`` and ``Pipeline`` run work on side streams, ``check`` finds what is not ordered in a program of PyTorch,
``diagnose`` and ``profile`` say why a GPU idled, ``benchmark`` times, ``overlap`` says what streams would be worth.
Importing this needs neither a GPU nor PyTorch nor numpy.
"""

from sidestream import ray as ray
from sidestream._benchmark import Benchmark, Roofline, benchmark
from sidestream._check import CheckedRace, CheckedRun, Mend, NamedStream, Place, Remark, Side, check
from sidestream._check_suppress import Suppression
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
from sidestream._overlap import Arrangement, Overlap, overlap
from sidestream._pipeline import Choice, Pipeline, Stage, StageError
from sidestream._prefetch import PrefetchStatistics, Prefetcher, prefetch
from sidestream._profile import Profile, profile
from sidestream._program import CheckReport, Lint, ProgramReport, Race, Refused, check_program
from sidestream._sidestream import DeviceArray, DeviceError, ProgramError, RaceError, TraceError, __version__
from sidestream._stream import Event, Stream
from sidestream._together import Diagnoses, FailedTrace, Rank, RankStep, Ranks, diagnose

__all__ = [
    "Arrangement",
    "Benchmark",
    "CheckReport",
    "CheckedRace",
    "CheckedRun",
    "Choice",
    "Device",
    "DeviceArray",
    "DeviceError",
    "Diagnoses",
    "Diagnosis",
    "Estimate",
    "Event",
    "Evidence",
    "FailedTrace",
    "Finding",
    "Lint",
    "Mend",
    "NamedStream",
    "Overlap",
    "Pipeline",
    "Place",
    "Prediction",
    "PrefetchStatistics",
    "Prefetcher",
    "Profile",
    "ProgramError",
    "ProgramReport",
    "Race",
    "RaceError",
    "Rank",
    "RankStep",
    "Ranks",
    "Refused",
    "Remark",
    "Replay",
    "Roofline",
    "Side",
    "Stage",
    "StageError",
    "Steps",
    "Stream",
    "StreamLoad",
    "Suppression",
    "TraceError",
    "TraceWarning",
    "__version__",
    "benchmark",
    "check",
    "check_program",
    "diagnose",
    "overlap",
    "prefetch",
    "profile",
]
