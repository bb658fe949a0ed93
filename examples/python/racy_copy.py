"""A batch is copied on a stream of its own, and neither wait nor record_stream orders its use."""

import torch

model = torch.nn.Linear(1024, 1024).cuda()
batches = [torch.randn(256, 1024).pin_memory() for _ in range(4)]
copies = torch.cuda.Stream()

for batch in batches:
    with torch.cuda.stream(copies):
        x = batch.to("cuda", non_blocking=True)
    loss = model(x).square().mean()
    loss.backward()
