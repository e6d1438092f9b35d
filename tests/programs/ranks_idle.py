"""A rank without torch. `fifo PATH`: in disk sleep until the pipe is written; `read PATH`: reads for ever."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

if sys.argv[1:2] == ["fifo"]:
    # The child opens the pipe before it runs; until then its parent sleeps uninterruptibly in vfork.
    actions = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[2], os.O_RDONLY, 0)]
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=actions)
while True:
    if sys.argv[1:2] == ["read"]:
        Path(sys.argv[2]).read_bytes()
    else:
        time.sleep(1)
