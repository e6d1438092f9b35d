"""A real torchrun job that goes wrong in a chosen way, watched by the whole chain: `make demo`."""
