"""Whether a loader keeps up, in a sentence, by how long a loop waited for it."""

from __future__ import annotations

#: With fewer batches nothing is said of a loader: the first one comes from a cold start.
FEW = 10
#: Where so much of the time is spent waiting for the loader, that is what to change.
STARVED = 0.05


def verdict(count: int, noun: str, waited_s: float, elapsed_s: float, spent: str) -> str:
    """Say whether the loader keeps up.

    Args:
        count: How many came from it.
        noun: What these are.
        waited_s: How long nothing else could happen.
        elapsed_s: Of how long.
        spent: What the time was spent with, behind the share.
    """
    if count < FEW:
        return f"{count} {noun} are too few to say whether the loader keeps up"
    share = waited_s / elapsed_s if elapsed_s > 0 else 0.0
    if share < STARVED:
        return f"the loader keeps up: {100 * share:.0f} % of the time {spent}"
    most = f"{1 / (1 - share):.1f} times as fast" if share < 0.99 else "many times as fast"
    return (
        f"your loader is the limit: {100 * share:.0f} % of the time {spent}, without which the loop would be "
        f"{most} at most; more workers (num_workers), or less work for a sample"
    )
