"""Tests with PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import sidestream

pytestmark = pytest.mark.torch


def test_what_the_profiler_writes_is_read(tmp_path: Path) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile

    path = tmp_path / "trace.json"
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        torch.ones(8, 8) @ torch.ones(8, 8)
    profiler.export_chrome_trace(str(path))
    # The error is that nothing ran on a GPU: the file itself was understood.
    with pytest.raises(sidestream.TraceError, match="was the profiler asked for CUDA activity"):
        sidestream.diagnose(path)
    assert "torch" in sys.modules
