"""Programs that tests and benchmarks share: racy ones, each with its fixed twin, and correct ones."""
