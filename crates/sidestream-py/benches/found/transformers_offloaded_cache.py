"""transformers' offloaded key-value cache (cache_implementation="offloaded"), as each layer's attention uses
it: a prompt of 64 tokens and 8 more, 6 layers. CACHE=dynamic (default) or static.
"""

import logging
import os
import sys
import types

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import alone  # noqa: E402

cache_utils = alone.load(
    "transformers.cache_utils",
    transformers__configuration_utils={"PreTrainedConfig": type, "PretrainedConfig": type},
    transformers__utils={
        "is_hqq_available": lambda: False,
        "is_quanto_greater": lambda *a, **k: False,
        "is_optimum_quanto_available": lambda: False,
        "is_torch_greater_or_equal": lambda *a, **k: True,
        "is_torchdynamo_compiling": lambda: False,
        "is_tracing": lambda *a: False,
        "logging": types.SimpleNamespace(get_logger=logging.getLogger),
    },
    transformers__utils__deprecation={"deprecate_kwarg": lambda *a, **k: lambda f: f},
)
LAYERS, HEADS, SIZE = 6, 4, 64


class Config:
    num_hidden_layers = LAYERS
    layer_types = ["full_attention"] * LAYERS
    number_of_conv_states = 1

    @property
    def per_layer_config(self):
        return [self] * LAYERS

    def get_text_config(self, decoder=True):
        return self


@torch.no_grad()
def step():
    torch.manual_seed(0)
    weights = [
        [(torch.randn(HEADS * SIZE, HEADS * SIZE) / (HEADS * SIZE) ** 0.5).cuda() for _ in range(4)]
        for _ in range(LAYERS)
    ]
    if os.environ.get("CACHE") == "static":
        cache = cache_utils.StaticCache(config=Config(), max_cache_len=128, offloading=True)
    else:
        cache = cache_utils.DynamicCache(offloading=True)
    x = torch.randn(1, 64, HEADS * SIZE).cuda()
    results = []
    for _ in range(8):
        for layer, (query, key, value, out) in enumerate(weights):
            q, k, v = ((x @ w).view(1, -1, HEADS, SIZE).transpose(1, 2) for w in (query, key, value))
            keys, values = cache.update(k, v, layer)
            scores = (q @ keys.transpose(2, 3)).softmax(-1) @ values
            x = x + scores.transpose(1, 2).reshape(1, -1, HEADS * SIZE) @ out
        x = torch.nn.functional.layer_norm(x[:, -1:], (HEADS * SIZE,))
        results.append(x)
    return results


if __name__ == "__main__":
    step()
