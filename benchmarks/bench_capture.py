"""Capturing a torch job beside one-after-another `py-spy dump`, and a fan-out to 1,024 and to 10,000 agents.

    python benchmarks/bench_capture.py [--rounds N] [--agents N]

The job has 4 ranks with 2 DataLoader workers each and a launcher. Once its ranks keep the cores busy, as ranks
do that wait in a collective on a GPU, and once all but its launcher sleep. Peer and capture alternate in the same
run. The agents are one process that answers on as many loopback addresses, with the answers of 8 ranks each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from imaginary import imaginary_job

from benchmarks.results import row
from exporter.procfs import ProcFS
from exporter.ranks import RankFinder
from snapshotter.capture import wire
from snapshotter.capture.facts import reader
from snapshotter.capture.fanout import AgentClient, capture_job
from snapshotter.capture.inventory import Agent, find_agents
from snapshotter.capture.node import capture_node
from snapshotter.capture.prometheus import Prometheus
from snapshotter.capture.pyspy import find_binary
from snapshotter.capture.wire import AnswerReader, Order
from snapshotter.stacks import report
from snapshotter.stacks.model import NodeAnswer
from snapshotter.stacks.premerge import digest_trees

PROGRAM = Path(__file__).resolve().parent.parent / "tests" / "programs" / "capture_train.py"
JOB = f"bench-capture-{os.getpid()}"  # whatever else runs here is none of it
PROCESSES = 4 * (1 + 2) + 1
ORDER = Order(job_id="llama-70b", with_tree=True)


_missed: list[str] = []


def say(name: str, value: float, unit: str, target: str, good: bool) -> None:
    if not good:
        _missed.append(name)
    print(f"{name:<52} {value:9.3f} {unit:<3} {'ok' if good else 'MISSED'} (target {target})", flush=True)
    shown = f"{value:.3g}" if value < 1000 else f"{value:.0f}"
    row(name, f"{shown} {unit}".rstrip(), bound=f"{target} {unit}".rstrip(), good=good)


def start_job(folder: str, *arguments: str) -> subprocess.Popen[bytes]:
    """The job, as soon as it trains."""
    log = Path(folder, "log")
    with log.open("wb") as output:
        job = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4"),
                *("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", f"--rdzv-id={JOB}"),
                *(str(PROGRAM), *arguments),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    end = time.monotonic() + 120
    while b"iteration 2\n" not in log.read_bytes():
        if job.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"the job did not start:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.1)
    return job


def one_after_another(pids: list[int]) -> None:
    binary = find_binary()
    for pid in pids:
        subprocess.run([binary, "dump", "--json", "--pid", str(pid)], capture_output=True, check=False)


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def with_children(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds that it took, and CPU seconds of the processes that it ran: what the machine wants for them."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken = timed(call)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return taken, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def bench_node(rounds: int, title: str, *arguments: str) -> None:
    procfs = ProcFS()
    finder = RankFinder(procfs, node="bench")
    pyspy = reader(procfs)
    answers: list[NodeAnswer] = []

    def capture() -> None:
        answers.append(capture_node(finder.scan, procfs, pyspy, node="bench", job_id=JOB, samples=1))

    with tempfile.TemporaryDirectory() as folder:
        job = start_job(folder, *arguments)
        try:
            pids = [one.id.pid for one in finder.scan().processes if one.job_id == JOB]
            if len(pids) != PROCESSES:
                raise SystemExit(f"{len(pids)} processes of the job were found, not {PROCESSES}")
            times = [(timed(lambda: one_after_another(pids)), *with_children(capture)) for _ in range(rounds)]
        finally:
            job.terminate()  # torchrun ends its ranks, which lead groups of their own
            job.wait(60)
    peer = statistics.median(one for one, _, _ in times)
    ours = statistics.median(one for _, one, _ in times)
    ratio = statistics.median(one / other for one, other, _ in times)
    floor = statistics.median(cpu for _, _, cpu in times) / (os.cpu_count() or 1)
    samples = [sample for answer in answers for process in answer.processes for sample in process.samples]
    pauses = sorted(sample.pause_seconds or 0.0 for sample in samples)
    whole = sum(sample.outcome == "ok" for sample in samples) / len(samples)
    print(
        f"{title}: {len(pids)} processes, {os.cpu_count()} cores, {rounds} rounds; py-spy one by one {peer:.3f} s;"
        f" the CPU time of py-spy alone, on all cores at once, {floor:.3f} s"
    )
    say(f"{title}: one sample of all processes", ours, "s", "<= 0.5", ours <= 0.5)
    say(f"{title}: times faster than py-spy one after another", ratio, "x", ">= 2.5", ratio >= 2.5)
    pause = pauses[int(len(pauses) * 0.99)]
    say(f"{title}: pause of a target, p99", pause * 1000, "ms", "<= 50", pause <= 0.050)
    say(f"{title}: samples with stacks", whole * 100, "%", "100", whole == 1)


def serve_agents(agents: int, ready: Path) -> None:
    """Answers on 127.x.y.1 for agent 256 x + y, whatever is asked."""
    nodes = imaginary_job(8 * agents, workers=1).nodes
    replies = []
    for node in nodes:
        body = wire.reply(node, ORDER)
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        replies.append(head.encode() + body)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        # All of it: closed with something unread, a connection is reset, the answer with it.
        await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
        _, high, low, _ = writer.get_extra_info("sockname")[0].split(".")
        writer.write(replies[int(high) * 256 + int(low)])
        await writer.drain()
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(answer, "0.0.0.0", 0, backlog=agents)
        ready.write_text(str(server.sockets[0].getsockname()[1]))
        await server.serve_forever()

    asyncio.run(serve())


def bench_fanout(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder, "port")
        server = subprocess.Popen([sys.executable, __file__, "--serve", str(ready), "--agents", str(count)])
        try:
            end = time.monotonic() + 120
            while not ready.exists() or not ready.read_text():
                if server.poll() is not None or time.monotonic() > end:
                    raise SystemExit("the agents did not start")
                time.sleep(0.05)
            port = int(ready.read_text())
            agents = [
                Agent(f"127.{number // 256}.{number % 256}.1", port, f"gpu-node-{number}")
                for number in range(count)
            ]
            client, reader, order = AgentClient(token="bench"), AnswerReader(), ORDER
            began = time.perf_counter()
            answers = capture_job(
                agents,
                lambda agent, deadline: client.ask(agent, order, reader, deadline=deadline),
                job_id="llama-70b",
            )
            gathered = time.perf_counter() - began
            merged = digest_trees(one.tree for one in answers)
            verdict = report.to_json(report.analyse_digest(merged, job_id="llama-70b", at=time.time()))
            whole = time.perf_counter() - began
        finally:
            server.kill()
            server.wait()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 / 1024
    arrived = sum(one.answer.outcome == "ok" for one in answers)
    print(f"{count} agents, {verdict['summary']['total_processes']} processes; gathered in {gathered:.3f} s")
    print(f"verdict: {verdict['verdict']['headline']}")
    limit = 15 if count <= 1024 else 120  # seconds; agents.total_timeout
    say(f"{count} agents: gathered", gathered, "s", f"<= {limit}", gathered <= limit)
    say(f"{count} agents: to the verdict", whole, "s", f"<= {limit}", whole <= limit)
    say(f"{count} agents: memory at most", memory, "GiB", "<= 1", memory <= 1)
    say(f"{count} agents: nodes that arrived", arrived, "", str(count), arrived == count)


def bench_discovery(count: int) -> None:
    """Where a job of so many nodes runs, as a Prometheus says it: 8 ranks on each, and the launcher."""
    series = [
        {
            "metric": {
                "node": f"gpu-node-{node}",
                "instance": f"gpu-node-{node}:11028",
                "role": "trainer" if rank < 8 else "launcher",
                "rank": str(8 * node + rank) if rank < 8 else "",
            },
            "value": [0, "1"],
        }
        for node in range(count)
        for rank in range(9)
    ]
    body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": series}}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.do_GET()

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        query = Prometheus(f"http://127.0.0.1:{server.server_port}").query
        began = time.perf_counter()
        found = find_agents("llama-70b", query=query)
        taken = time.perf_counter() - began
    finally:
        server.shutdown()
        server.server_close()
    if len(found.agents) != count or found.agents[0].ranks == ():
        raise SystemExit(f"{len(found.agents)} of {count} nodes were found: {found.problem}")
    limit = 5 if count <= 1024 else 30
    say(f"{count} nodes: found in Prometheus", taken, "s", f"<= {limit}", taken <= limit)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--agents", type=int, nargs="+", default=[1024, 10_000])
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve_agents(options.agents[0], options.serve)
        return 0
    # First, as memory is measured over the life of the process.
    for count in options.agents:
        bench_discovery(count)
        bench_fanout(count)
    bench_node(options.rounds, "ranks that spin", "--pace=0")
    bench_node(options.rounds, "ranks that sleep", "--hang")
    return 1 if _missed else 0


if __name__ == "__main__":
    sys.exit(main())
