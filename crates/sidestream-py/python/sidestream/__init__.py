"""Overlapping work on GPUs, beside PyTorch.

``prefetch`` and ``Pipeline`` run work on side streams, ``check`` finds what is not ordered in a program of PyTorch,
``diagnose`` and ``profile`` say why a GPU idled, ``benchmark`` times, ``overlap`` says what streams would be worth.
Importing this needs neither a GPU nor PyTorch nor numpy.

``sidestream.ray`` and ``sidestream.lightning`` are for those libraries. The classes of results, such as ``sidestream.Diagnosis``,
are here to be named in annotations, and are not listed.
"""

from sidestream import ray as ray
from sidestream._benchmark import Benchmark as Benchmark
from sidestream._benchmark import Roofline as Roofline
from sidestream._benchmark import benchmark
from sidestream._check import CheckedRace as CheckedRace
from sidestream._check import CheckedRun as CheckedRun
from sidestream._check import NamedStream as NamedStream
from sidestream._check import Place as Place
from sidestream._check import Remark as Remark
from sidestream._check import Side as Side
from sidestream._check import check
from sidestream._diagnosis import Device as Device
from sidestream._diagnosis import Diagnosis as Diagnosis
from sidestream._diagnosis import Estimate as Estimate
from sidestream._diagnosis import Evidence as Evidence
from sidestream._diagnosis import Finding as Finding
from sidestream._diagnosis import Prediction as Prediction
from sidestream._diagnosis import Replay as Replay
from sidestream._diagnosis import Steps as Steps
from sidestream._diagnosis import StreamLoad as StreamLoad
from sidestream._diagnosis import TraceWarning as TraceWarning
from sidestream._overlap import Arrangement as Arrangement
from sidestream._overlap import Overlap as Overlap
from sidestream._overlap import overlap
from sidestream._pipeline import Choice as Choice
from sidestream._pipeline import Pipeline, Stage, StageError
from sidestream._prefetch import PrefetchStatistics as PrefetchStatistics
from sidestream._prefetch import Prefetcher as Prefetcher
from sidestream._prefetch import prefetch
from sidestream._profile import Profile as Profile
from sidestream._profile import profile
from sidestream._program import CheckReport as CheckReport
from sidestream._program import Lint as Lint
from sidestream._program import ProgramReport as ProgramReport
from sidestream._program import Race as Race
from sidestream._program import Refused as Refused
from sidestream._program import check_program
from sidestream._sidestream import DeviceArray as DeviceArray
from sidestream._sidestream import DeviceError, ProgramError, RaceError, TraceError, __version__
from sidestream._stream import Event, Stream
from sidestream._together import Diagnoses as Diagnoses
from sidestream._together import FailedTrace as FailedTrace
from sidestream._together import Rank as Rank
from sidestream._together import RankStep as RankStep
from sidestream._together import Ranks as Ranks
from sidestream._together import diagnose

#: What people call and catch. What calls return is named without being listed, so that help and completion stay short.
__all__ = [
    "DeviceError",
    "Event",
    "Pipeline",
    "ProgramError",
    "RaceError",
    "Stage",
    "StageError",
    "Stream",
    "TraceError",
    "__version__",
    "benchmark",
    "check",
    "check_program",
    "diagnose",
    "overlap",
    "prefetch",
    "profile",
]


def __dir__() -> list[str]:
    return [*__all__, "ray"]
