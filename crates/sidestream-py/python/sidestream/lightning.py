"""Prefetching in a Lightning ``Trainer``. Importing this module requires Lightning: ``lightning`` or
``pytorch_lightning``.
"""

from __future__ import annotations

from typing import Any, Literal

from sidestream._prefetch import prefetch

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

__all__ = ["Prefetch"]


class Prefetch(Callback):  # type: ignore[misc]
    """Prefetches the batches of every loader of a ``Trainer`` to its device.

    Use it as ``Trainer(callbacks=[Prefetch()])``; ``train_dataloader()`` and the others return their loaders
    without ``prefetch``. The trainer first gives each loader the sampler of its rank, and the result is
    prefetched. The trainer would not do so with a loader that is already prefetched, and each rank would
    train on all of the data.

    Args:
        depth: As for ``sidestream.prefetch``.
        keep: As for ``sidestream.prefetch``.
    """

    def __init__(self, depth: int = 2, *, keep: Literal["grow", "copy"] = "grow") -> None:
        """Take the arguments of ``sidestream.prefetch``; the device is the trainer's."""
        super().__init__()
        self._depth = depth
        self._keep = keep

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Prefetch each loader after the strategy has processed it."""
        strategy = trainer.strategy
        if "process_dataloader" in vars(strategy):
            # A trainer that fits and then tests calls this twice.
            return
        process = strategy.process_dataloader

        def prefetched(dataloader: Any) -> Any:
            loader, device = process(dataloader), strategy.root_device
            if device.type not in ("cpu", "cuda"):
                return loader
            return prefetch(loader, device, self._depth, keep=self._keep)

        strategy.process_dataloader = prefetched

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Restore the strategy."""
        vars(trainer.strategy).pop("process_dataloader", None)
