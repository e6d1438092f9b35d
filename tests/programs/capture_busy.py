"""Changes its stacks as fast as it can, in two threads."""

import threading


def fibonacci(number: int) -> int:
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)


def sort_on() -> None:
    while True:
        sorted((number * 7 % 101 for number in range(50)), key=lambda number: -number)


threading.Thread(target=sort_on, name="sorter", daemon=True).start()
print("ready", flush=True)
while True:
    fibonacci(18)
