"""Sleeps in state D, killably: the parent of a spawn whose child opens a FIFO that nobody writes to.

capture_disk_sleep.py FIFO [thread]     in the main thread, or in another one
"""

import os
import sys
import threading


def spawn() -> None:
    action = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[action])


if sys.argv[2:] == ["thread"]:
    threading.Thread(target=spawn).start()
else:
    spawn()
