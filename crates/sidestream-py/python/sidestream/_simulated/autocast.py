"""Autocast for a simulated GPU: the tensors are not CUDA tensors, so PyTorch's own does not see them.

The lists are those of PyTorch for CUDA (docs.pytorch.org/docs/stable/amp.html): functions that run in the
shorter type, and functions that run in float32. All others run in the types that they are given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

_SHORT = (
    "__matmul__ __rmatmul__ addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d "
    "conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d einsum linear matmul mm mv prelu "
    "scaled_dot_product_attention"
).split()
_LONG = (
    "__pow__ __rpow__ acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss "
    "cosine_similarity cross_entropy_loss cumprod cumsum dist erfinv exp expm1 group_norm "
    "hinge_embedding_loss huber_loss kl_div l1_loss layer_norm log log10 log1p log2 log_softmax "
    "logsumexp margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss nll_loss_nd norm "
    "poisson_nll_loss pow prod reciprocal renorm rsqrt sinh smooth_l1_loss soft_margin_loss softmax "
    "softplus sum tan triplet_margin_loss upsample_bicubic2d upsample_bilinear2d upsample_nearest2d"
).split()


def functions() -> list[tuple[Any, dict[str, Any]]]:
    """Return the replacements for functions that autocast concerns, with their owners."""
    found = []
    for owner in (torch, torch._VF, torch.nn.functional, torch.Tensor, torch._C._nn):
        replaced = {}
        for names, is_short in ((_SHORT, True), (_LONG, False)):
            for name in names:
                plain = getattr(owner, name, None)
                # Functions of `functional` that are written in Python call others, which are replaced.
                if plain is not None and not hasattr(plain, "__code__"):
                    replaced[name] = _cast(plain, is_short)
        found.append((owner, replaced))
    return found


def _cast(plain: Callable[..., Any], is_short: bool) -> Callable[..., Any]:
    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_autocast_enabled("cuda"):
            return plain(*args, **kwargs)
        dtype = torch.get_autocast_dtype("cuda") if is_short else torch.float32

        def cast(tensor: Any) -> Any:
            is_cast = tensor.is_cuda and tensor.is_floating_point() and tensor.dtype is not torch.float64
            return tensor.to(dtype) if is_cast and tensor.dtype is not dtype else tensor

        args, kwargs = tree_map_only(torch.Tensor, cast, (args, kwargs))
        return plain(*args, **kwargs)

    return call
