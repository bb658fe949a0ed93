"""Programs that tests and benches have in common: racy ones, each with its repaired twin, and right ones."""
