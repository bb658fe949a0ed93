"""Prefetching in a ``Trainer`` of Lightning, whose loaders are shared out among the ranks before they are
iterated over.

Importing this needs Lightning: ``lightning`` or ``pytorch_lightning``.
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
    """Prefetch the batches of every loader of a trainer to its device.

    ``Trainer(callbacks=[Prefetch()])`` is all: ``train_dataloader()`` and the others return their loaders as
    they are. The trainer gives each loader the sampler of its rank first, and what comes of that is
    prefetched. A loader that is prefetched already it would leave as it is, and each rank would train on all
    of the data.
    """

    def __init__(self, depth: int = 2, *, keep: Literal["grow", "copy"] = "grow") -> None:
        """Take the arguments of ``sidestream.prefetch``. The device is the trainer's."""
        super().__init__()
        self._depth = depth
        self._keep = keep

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Put it behind what the strategy does with a loader."""
        strategy = trainer.strategy
        if "process_dataloader" in vars(strategy):
            # It is there already: a trainer that fits and then tests sets up twice.
            return
        process = strategy.process_dataloader

        def prefetched(dataloader: Any) -> Any:
            loader, device = process(dataloader), strategy.root_device
            if device.type not in ("cpu", "cuda"):
                return loader
            return prefetch(loader, device, self._depth, keep=self._keep)

        strategy.process_dataloader = prefetched

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave the strategy as it was."""
        vars(trainer.strategy).pop("process_dataloader", None)
