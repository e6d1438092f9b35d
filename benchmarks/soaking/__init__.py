"""The parts of `benchmarks/soak.py`: what jobs do, the ranks that do it, and what must come of it."""
