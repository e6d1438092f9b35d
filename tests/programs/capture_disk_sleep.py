"""Sleeps in state D, killably: the parent of a spawn whose child opens a FIFO that nobody writes to."""

import os
import sys

os.posix_spawn(
    "/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]
)
