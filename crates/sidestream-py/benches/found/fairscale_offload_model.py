"""fairscale.experimental.nn.offload.OffloadModel as in its own test (train one batch, with and without
activations).
"""

import torch
from fairscale.experimental.nn.offload import OffloadModel


def step(checkpoint_activation=True):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 512),
        *([torch.nn.Linear(512, 512)] * 0),
        torch.nn.Linear(512, 512),
        torch.nn.Linear(512, 8),
    )
    device = torch.device("cuda", 0)
    model = OffloadModel(
        model=model,
        device=device,
        offload_device=torch.device("cpu"),
        num_slices=3,
        checkpoint_activation=checkpoint_activation,
        num_microbatches=1,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    criterion = torch.nn.CrossEntropyLoss()
    losses = []
    for _ in range(2):
        data = torch.ones(32, 512, device=device)
        target = torch.zeros(32, dtype=torch.long, device=device)
        optimizer.zero_grad()
        with torch.cuda.amp.autocast(enabled=False):
            loss = criterion(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


if __name__ == "__main__":
    step()
