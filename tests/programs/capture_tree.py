"""A process with a thread by name, a Python child and one that is not Python; says its children's pids."""

import subprocess
import sys
import threading
import time


def wait_for_data() -> None:
    time.sleep(600)


def train() -> None:
    time.sleep(600)


threading.Thread(target=wait_for_data, name="loader", daemon=True).start()
python = subprocess.Popen(
    [sys.executable, "-c", "import time; print('runs', flush=True); time.sleep(600)"], stdout=subprocess.PIPE
)
assert python.stdout is not None and python.stdout.readline()
plain = subprocess.Popen(["sleep", "600"])
print(python.pid, plain.pid, flush=True)
train()
