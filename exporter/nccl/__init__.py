"""NCCL's RAS service: asking it and reading its answers (text and JSON of every version from 2.24 on)."""
