"""Overlapping work on GPUs, alongside PyTorch.

``prefetch``, ``fetch``, ``parallel`` and ``Pipeline`` run work on side streams, ``Batcher`` serves requests,
``check`` finds unordered accesses in a PyTorch program, ``diagnose`` and ``profile`` explain why a GPU idled,
``benchmark`` times a function, ``compare`` shows which of two functions is faster, and ``overlap`` predicts
the gain of streams. ``offload`` and ``offload_activations`` keep on the host what does not fit on the GPU.
Importing the package needs neither a GPU nor PyTorch nor numpy; a call that needs one of them raises an error
that says so.

A ``device`` is one of these:

- ``"cuda:1"``, ``1`` or a ``torch.device``: that GPU. ``"cuda"``: PyTorch's current GPU once PyTorch uses
  CUDA, otherwise the first.
- ``"cpu"``: the CPU, for ``prefetch``, ``Pipeline``, ``benchmark`` and ``compare``.
- ``"sim:h200"``, ``"sim:FILE.toml"``: a simulated GPU, for ``prefetch``, ``Stream``, ``Event``, ``caps``,
  ``overlap`` and ``roofline``.
- ``"auto"``: like ``"cuda"``, or ``"sim:h200"`` if no GPU can be opened; for the functions that take
  ``"sim:h200"``.

Calls that block or compute let Python's other threads run. Results are values: they can be pickled. Streams,
events, pipelines, batchers and the objects that ``check`` and ``profile`` return cannot; use their
``to_dict()``.

``sidestream.ray``, ``sidestream.lightning`` and ``sidestream.images`` are separate modules, and ``python -m
sidestream.mcp`` serves agents. The classes of results, such as ``sidestream.Diagnosis``, are available for
annotations, but are not listed.
"""

from typing import TYPE_CHECKING

from sidestream import ray as ray
from sidestream._answer import Answer as Answer, RequestExpired, RequestRefused
from sidestream._batcher import Batcher
from sidestream._benchmark import Benchmark as Benchmark, Roofline as Roofline, benchmark
from sidestream._check import CheckedRun as CheckedRun, check
from sidestream._check_suppress import Suppression as Suppression
from sidestream._checked import (
    CheckedRace as CheckedRace,
    HostAccesses as HostAccesses,
    Mend as Mend,
    NamedStream as NamedStream,
    Place as Place,
    Remark as Remark,
    Side as Side,
)
from sidestream._compare import Comparison as Comparison, compare
from sidestream._devices import Caps as Caps, caps
from sidestream._diagnosis import (
    Device as Device,
    Diagnosis as Diagnosis,
    Estimate as Estimate,
    Evidence as Evidence,
    Finding as Finding,
    Prediction as Prediction,
    Replay as Replay,
    Steps as Steps,
    StreamLoad as StreamLoad,
    TraceWarning as TraceWarning,
)
from sidestream._hand_over import empty_cache
from sidestream._fetch import Fetched as Fetched, RunningMean, fetch
from sidestream._loop import LoopOverlap as LoopOverlap
from sidestream._offload import offload
from sidestream._offload_activations import (
    OffloadedActivations as OffloadedActivations,
    offload_activations,
)
from sidestream._offload_activations_report import ActivationsReport as ActivationsReport
from sidestream._overlap import Arrangement as Arrangement, Overlap as Overlap, overlap
from sidestream._parallel import parallel
from sidestream._pipeline import (
    Choice as Choice,
    Pipeline,
    PipelineStatistics as PipelineStatistics,
    Stage,
    StageError,
    Sweep as Sweep,
    SweepRow as SweepRow,
)
from sidestream._prefetch import PrefetchStatistics as PrefetchStatistics, Prefetcher as Prefetcher, prefetch
from sidestream._profile import Profile as Profile, profile
from sidestream._program import (
    CheckReport as CheckReport,
    Lint as Lint,
    ProgramReport as ProgramReport,
    Race as Race,
    Refused as Refused,
    check_program,
)
from sidestream._check_provoke import Provocation as Provocation, Provoked as Provoked, provoke
from sidestream._roofline import RooflineEstimate as RooflineEstimate, roofline
from sidestream._sidestream import (
    BatcherStatistics as BatcherStatistics,
    DeviceArray as DeviceArray,
    DeviceError,
    ProgramError,
    RaceError,
    Times as Times,
    TraceError,
    __version__ as __version__,
)
from sidestream._simulate import Simulated as Simulated, simulate
from sidestream._stream import Event, InFlight as InFlight, Stream
from sidestream._tables import (
    KernelRow as KernelRow,
    MemoryHolder as MemoryHolder,
    MemoryRow as MemoryRow,
    OperatorRow as OperatorRow,
    RangeRow as RangeRow,
    RangeTimes as RangeTimes,
    Table as Table,
)
from sidestream._together import (
    Diagnoses as Diagnoses,
    FailedTrace as FailedTrace,
    LongWait as LongWait,
    Rank as Rank,
    RankGroups as RankGroups,
    RankStep as RankStep,
    Ranks as Ranks,
    SlowRank as SlowRank,
    diagnose,
)
from sidestream._unprofiled import Unprofiled as Unprofiled

#: The functions that users call and the exceptions that they catch. The classes of results are not listed, so
#: that help and completion stay short.
__all__ = [
    "Batcher",
    "DeviceError",
    "Event",
    "Pipeline",
    "ProgramError",
    "RaceError",
    "RequestExpired",
    "RequestRefused",
    "RunningMean",
    "Stage",
    "StageError",
    "Stream",
    "TraceError",
    "benchmark",
    "caps",
    "check",
    "check_program",
    "compare",
    "diagnose",
    "empty_cache",
    "fetch",
    "offload",
    "offload_activations",
    "overlap",
    "parallel",
    "prefetch",
    "profile",
    "provoke",
    "roofline",
    "simulate",
]


def __dir__() -> list[str]:
    return [*__all__]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Raise an error that suggests a name, for a name that does not exist."""
        text = f"module 'sidestream' has no attribute {name!r}"
        if name in ("images", "lightning"):
            text += f"; import sidestream.{name}"
        elif not name.startswith("_"):
            import difflib

            known = {one.lower(): one for one in reversed(__all__)}
            near = difflib.get_close_matches(name.lower(), known, 1, 0.7)
            text += f"; did you mean {known[near[0]]}?" if near else "; dir(sidestream) lists all names"
        raise AttributeError(text)
