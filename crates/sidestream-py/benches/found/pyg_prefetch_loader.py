"""torch_geometric.loader.PrefetchLoader over graphs, with a small step on each batch."""

import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader, PrefetchLoader

GRAPHS = [
    Data(x=torch.full((4096, 64), float(i)), edge_index=torch.zeros(2, 4096, dtype=torch.long))
    for i in range(8)
]


def step():
    weight = torch.eye(64, device="cuda")
    loader = PrefetchLoader(DataLoader(GRAPHS, batch_size=1), device=torch.device("cuda"))
    results = []
    for batch in loader:
        results.append((batch.x @ weight).sum(0))
    return results


if __name__ == "__main__":
    step()
