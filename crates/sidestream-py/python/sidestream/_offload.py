"""``offload``: a model that is larger than the GPU. Importing this does not import PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidestream._arguments import size_bytes

if TYPE_CHECKING:
    from sidestream._offload_model import Offloaded


def offload(
    model: Any, device: Any = "cuda", *, budget: int | str, pinned: int | str | None = None
) -> Offloaded:
    """Run a model whose weights do not fit on the GPU: they stay in pinned memory of the host, and each layer
    is copied to the device ahead of its turn, beside the layers before it.

    ``sidestream.offload(model, "cuda", budget="8GiB")`` changes the model in place; call it as before, with
    inputs on the device. As many layers as fit stay on the device, and the others take turns in the rest
    of the budget. The order of layers is learned in the first pass and followed from then on; where a pass
    differs from the last, a layer that is not there is copied when it is called, so results never depend on
    the guess. If everything fits, all of it is moved to the device, and nothing else happens.

    **Ordering.** A layer's stream waits for the copy of its weights, and the copy of other weights into the
    same memory waits for the layer. The host blocks for neither. Between passes the weights are on the CPU,
    where they may be read and changed: in place (an optimizer, ``load_state_dict``, ``copy_``), or by giving
    a parameter other ``data``. Only a change in place through ``param.data`` is not noticed; call
    ``changed()`` after it.

    **Training.** Backward copies the weights again, in reverse order. Gradients of layers that take turns are
    copied to the host as they come, and are complete when ``backward()`` returns, so any optimizer of the
    CPU works; those of layers that stay on the device stay there, and so do small tensors and all buffers.

    Layers are the modules that fit into a fourth of the budget as a whole, such as the blocks of a
    transformer, or else their children. A weight that is used outside the layer that has it must be
    small, or belong to a layer that is called at that time; otherwise PyTorch says that tensors are on
    different devices. ``torch.utils.checkpoint`` works if the layers of a checkpointed part fit at once.

    Args:
        model: Any ``nn.Module`` on the CPU, or on the device.
        device: A GPU: ``"cuda"``, ``"cuda:1"``, or a ``torch.device``.
        budget: Maximum bytes of device memory for the model's tensors, as a number or a text such as
            ``"8GiB"``. Activations and gradients are not in it.
        pinned: Maximum bytes of pinned host memory for the weights; by default all are pinned, if the system
            has that much. What does not fit stays in its files, if it was loaded by ``torch.load(mmap=True)``
            or safetensors, and is read ahead of its turn in each pass. Such weights cannot be trained or
            changed; those that were changed after loading are pinned.

    Returns:
        The object that describes the plan (``print`` it), and ends it: ``remove()`` brings the weights back
        to the CPU, and ``remove("cuda")`` moves all of them to the device. Its ``plan`` is an ``OffloadPlan``
        once three passes are complete, and draws the pass: ``timeline()`` as text, ``svg()`` as a picture.
        ``plans`` has one for each phase, such as prefill and decode; ``pinned_bytes`` is what is pinned.

    Raises:
        TypeError: The model is not an ``nn.Module``, or the budget not a size.
        ValueError: The budget or ``pinned`` is too small: the error says by how much. Or the device is not a
            GPU.
        RuntimeError: The model, or one that shares a parameter with it, is offloaded already, or pinned
            memory cannot be had. In a pass: a file has changed, or weights that stay in one.
        ImportError: PyTorch is not installed.
    """
    most = size_bytes("budget", budget)
    try:
        from sidestream._offload_model import Offloaded
    except ImportError as error:
        raise ImportError("offload needs PyTorch, which is not installed; pip install torch") from error
    return Offloaded(model, device, most, None if pinned is None else size_bytes("pinned", pinned))
