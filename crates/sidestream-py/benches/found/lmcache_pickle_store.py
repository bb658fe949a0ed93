"""LMCache's engine-driven store over the pickle transport: paged KV to host chunks, then pickled.

The copies are those of LMCache's operators in PyTorch; the chunks are pinned, as they are with its compiled
operators.
"""

import logging
import pickle
import sys
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
import torch
from lmcache.v1.multiprocess.transfer_context import base, worker_transfer
from lmcache.v1.multiprocess.transfer_context.pickle import EngineDrivenContextPickle as Pickle


class Queue:
    """A message queue that keeps what is sent."""

    def __init__(self):
        self.sent = []

    def submit_request(self, request, arguments, response):
        self.sent.append(arguments)
        return self

    def result(self, timeout=None):
        return True

    def prepare_store(self, key, instance):
        return self

    def commit_store(self, key, instance, chunks):
        return self.submit_request(None, [key, instance, chunks], None)


def pinned_chunks(caches, blocks, blocks_in_chunk, out=None, **given):
    first = next(iter(caches.values()))
    tokens = blocks_in_chunk * first.shape[2]
    shape = (2, len(caches), tokens, first.shape[3] * first.shape[4])
    out = [
        torch.empty(shape, dtype=first.dtype, pin_memory=True) for _ in range(len(blocks) // blocks_in_chunk)
    ]
    return base.gather_paged_kv_to_cpu(caches, blocks, blocks_in_chunk, out=out, **given)


worker_transfer.gather_paged_kv_to_cpu = pinned_chunks


def step():
    caches = {
        f"layer{i}": torch.full((2, 16, 16, 8, 64), float(i + 1), device="cuda", dtype=torch.float32)
        for i in range(4)
    }
    queue = Queue()
    context = worker_transfer.EngineDrivenTransferContext.__new__(worker_transfer.EngineDrivenTransferContext)
    context._engine_driven_context = Pickle.__new__(Pickle)
    context._engine_driven_context.req_client = queue
    context._engine_driven_context.mq_client, context._engine_driven_context.mq_timeout = queue, 1.0
    context._layout_hints = context._engine_kv_format = None
    for _ in range(2):
        for cache in caches.values():
            cache.add_(1)
        context.submit_store("request", "key", 0, caches, [list(range(16))], None, 4)
    return [chunk for arguments in queue.sent if len(arguments) == 3 for chunk in pickle.loads(arguments[2])]


if __name__ == "__main__":
    step()
