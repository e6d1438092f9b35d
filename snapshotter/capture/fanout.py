"""All nodes of a job at once: each agent within its deadline, the whole within another, nobody forgotten.

What arrived in time is the capture. A node that did not answer is in it too, with its outcome, the reason,
and the ranks that were last seen there.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import urllib3

from snapshotter.capture import wire
from snapshotter.capture.bounded import run_all
from snapshotter.capture.inventory import Agent
from snapshotter.capture.neterror import why
from snapshotter.capture.node import Progress
from snapshotter.capture.wire import AnswerReader, NotAnAnswer, Order
from snapshotter.encoding import encode
from snapshotter.gathered import Gathered
from snapshotter.stacks.model import NodeAnswer, Outcome

log = logging.getLogger(__name__)

_CONNECT_LIMIT = 5.0  # seconds
_ASK_AGAIN = 1.0  # seconds between questions to an agent that is away
_PIECE = 1 << 20  # bytes
_LARGEST_ERROR = 64 * 1024
_OF_AGENTS = frozenset({400, 413, 500, 503})  # statuses of refusals that are an agent's own


@dataclass(frozen=True, slots=True)
class Tls:
    """How to talk to agents over TLS: files in PEM form, None: the system's authorities, no client's own.

    `server_name` is what all agents' certificates name; None: each the address that it is asked at.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None


class AgentFailure(Exception):
    """An agent gave no answer to use; `outcome` is its node's.

    `away`: its host answers but it does not, as while it is restarted: it may be asked again.
    """

    def __init__(self, outcome: Outcome, reason: str, *, away: bool = False) -> None:
        super().__init__(reason)
        self.outcome: Outcome = outcome
        self.away = away


class AgentClient:
    """Asks agents over HTTP. Safe to use from many threads."""

    def __init__(self, *, token: str | None = None, tls: Tls | None = None) -> None:
        """With `tls` agents are asked over https. Raises OSError for a file of it that cannot be used."""
        self._token = token
        self._context = None if tls is None else _context(tls)
        self._server_name = None if tls is None else tls.server_name

    def ask(self, agent: Agent, order: Order, reader: AnswerReader, *, deadline: float) -> Gathered:
        """One node's answer, checked. Raises AgentFailure. `deadline`: seconds from now."""
        status, body = self._post(agent, order, time.monotonic() + deadline)
        if status in (401, 403):
            mine = (
                "our token" if self._token is not None else "who shows no token: name it in agents.token_file"
            )
            raise AgentFailure("denied", f"the agent at {agent.address} refuses {mine}")
        if status != 200:
            said = " ".join(body[:_LARGEST_ERROR].decode("utf-8", "replace").split())[:300]
            hint = "" if status in _OF_AGENTS else "; is this the address of an agent?"
            raise AgentFailure(
                "error", f"the agent at {agent.address} answered {status}{said and f': {said}'}{hint}"
            )
        try:
            gathered = reader.read(body)
            wire.check(gathered, node=agent.node, job_id=order.job_id)
        except NotAnAnswer as error:
            raise AgentFailure("error", f"the answer of {agent.address} cannot be used: {error}") from error
        return gathered

    def _post(self, agent: Agent, order: Order, end: float) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "gzip"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        left = max(0.1, end - time.monotonic())
        # A pool for one request: thousands of agents are asked, each once in a long while.
        pool = self._pool(agent)
        try:
            reply = pool.request(
                "POST",
                "/api/v1/capture",
                body=encode(order),
                headers=headers,
                timeout=urllib3.Timeout(connect=min(_CONNECT_LIMIT, left), read=left),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            try:
                return reply.status, _read(reply, end)
            finally:
                reply.close()
        except urllib3.exceptions.NewConnectionError as error:
            refused = isinstance(error.__cause__, ConnectionRefusedError)
            hint = ": no agent listens there (hangscope-snapshotter agent)" if refused else ""
            raise AgentFailure(
                "unreachable", f"{agent.address} cannot be asked: {why(error)}{hint}", away=refused
            ) from error
        except urllib3.exceptions.ConnectTimeoutError as error:
            raise AgentFailure("unreachable", f"{agent.address} does not answer") from error
        except (urllib3.exceptions.ReadTimeoutError, _TooSlow) as error:
            raise AgentFailure("timeout", f"the agent at {agent.address} gave no answer in time") from error
        except _TooLarge as error:
            limit = wire.LARGEST_ANSWER >> 20
            raise AgentFailure("error", f"the answer of {agent.address} exceeds {limit} MiB") from error
        except (urllib3.exceptions.HTTPError, OSError, zlib.error, ValueError) as error:
            raise AgentFailure(
                "unreachable",
                f"{agent.address} cannot be asked: {why(error)}",
                away=any(isinstance(one, ConnectionResetError) for one in error.args),
            ) from error
        finally:
            pool.close()

    def _pool(self, agent: Agent) -> urllib3.HTTPConnectionPool:
        if self._context is None:
            return urllib3.HTTPConnectionPool(agent.host, agent.port, maxsize=1)
        return urllib3.HTTPSConnectionPool(
            agent.host,
            agent.port,
            maxsize=1,
            ssl_context=self._context,
            cert_reqs="CERT_REQUIRED",
            server_hostname=self._server_name,
            assert_hostname=self._server_name,
        )


class _TooSlow(Exception):
    pass


class _TooLarge(Exception):
    pass


def _read(reply: urllib3.BaseHTTPResponse, end: float) -> bytes:
    pieces, size = [], 0
    while piece := reply.read1(_PIECE, decode_content=True):  # what is there: it may come a byte at a time
        pieces.append(piece)
        size += len(piece)
        if size > wire.LARGEST_ANSWER:
            raise _TooLarge
        if time.monotonic() > end:
            raise _TooSlow
    return b"".join(pieces)


def capture_job(
    agents: Sequence[Agent],
    ask: Callable[[Agent, float], Gathered],
    *,
    job_id: str,
    node_deadline: float = 75.0,
    total_deadline: float = 120.0,
    at_once: int = 2048,
    patience: float = 0.0,
    progress: Callable[[Progress], None] = lambda step: None,
    now: Callable[[], float] = time.time,
) -> tuple[Gathered, ...]:
    """Ask every agent at the same time; one answer for each, in order. Never raises for what an agent does.

    `ask` puts the question to one agent within so many seconds, and raises AgentFailure; one that is
    away is asked again for `patience` seconds. A node that has answered already under another address is an error
    and not counted twice.
    """
    started = now()
    lock = threading.Lock()
    done = 0

    def failed(agent: Agent, outcome: Outcome, reason: str) -> Gathered:
        answer = NodeAnswer(
            node=agent.name,
            outcome=outcome,
            started_at=started,
            finished_at=now(),
            job_id=job_id,
            error=reason,
            expected_ranks=agent.ranks,
        )
        return Gathered.of(answer)

    def put(agent: Agent) -> Gathered:
        nonlocal done
        try:
            gathered = _patiently(ask, agent, node_deadline, patience)
        except AgentFailure as failure:
            gathered = failed(agent, failure.outcome, str(failure))
        except Exception as error:
            # A fault of ours in reading one answer must not cost the others.
            log.exception("asking the agent at %s failed", agent.address)
            gathered = failed(agent, "error", f"asking {agent.address} failed: {error}")
        with lock:
            done += 1
            try:
                progress(Progress(gathered.answer.node, "nodes", done, len(agents)))
            except Exception:  # telling is no reason to fail
                log.exception("progress could not be told")
        return gathered

    limit = node_deadline + patience + 2 * _CONNECT_LIMIT
    arrived = run_all(put, agents, at_once=at_once, limit=limit, total=total_deadline)
    complete: list[Gathered] = []
    places: dict[str, Agent] = {}
    for agent, gathered in zip(agents, arrived, strict=True):
        if gathered is None:
            reason = f"the agent at {agent.address} gave no answer in time"
            complete.append(failed(agent, "timeout", reason))
            continue
        answer = gathered.answer
        if answer.outcome == "ok" and answer.node in places:
            other = places[answer.node].address
            reason = f"{agent.address} calls itself {answer.node}, as {other} does already"
            complete.append(failed(replace(agent, node=None), "error", reason))
            continue
        if answer.outcome == "ok":
            places[answer.node] = agent
        held = {process.rank for process in gathered.processes}
        complete.append(gathered.expecting({*agent.ranks} - held | {*answer.expected_ranks}))
    return tuple(complete)


def _patiently(
    ask: Callable[[Agent, float], Gathered], agent: Agent, deadline: float, patience: float
) -> Gathered:
    until = time.monotonic() + patience
    while True:
        try:
            return ask(agent, deadline)
        except AgentFailure as failure:
            if not failure.away or time.monotonic() + _ASK_AGAIN > until:
                raise
        time.sleep(_ASK_AGAIN)


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca_file)
    if tls.cert_file is not None:
        context.load_cert_chain(tls.cert_file, tls.key_file)
    return context
