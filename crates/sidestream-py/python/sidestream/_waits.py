"""States in a sentence whether a loader keeps up, from the time that a loop waited for it."""

from __future__ import annotations

#: Minimum number of batches for a verdict, since the first one includes the start of the loader.
FEW = 10
#: Minimum share of the time spent waiting at which the loader counts as the limit.
STARVED = 0.05


def verdict(count: int, noun: str, waited_s: float, elapsed_s: float, spent: str) -> str:
    """Return a sentence on whether the loader keeps up.

    Args:
        count: Number of batches or items from the loader.
        noun: The word for them in the sentence.
        waited_s: Seconds in which the loop could only wait.
        elapsed_s: Seconds of the loop.
        spent: How the waiting time was spent, as it follows the share in the sentence.
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
