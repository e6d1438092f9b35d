"""Metrics printed as JSON objects or Python dicts: counters, totals and what the record is about, by key."""

from __future__ import annotations

import json
import re

from exporter.logs.numbers import NUMBER, count
from exporter.logs.reading import NO_METRICS, Form, Reading
from exporter.logs.words import Counter, Topic, counter, topic
from exporter.logs.wrappers import Record, plain

_LOOKED_AT = 4096
_START = re.compile(r"\{\s*[\"']")
_ENTRY = re.compile(
    r"""["'](?P<key>[^"'\n]{1,80})["']\s*:\s*(?:np\.\w+\(|tensor\()?\s*(?P<value>"[^"]*"|'[^']*'|(?!\s*[{\[])[^,}\]\n]*)"""
)
_OUT_OF = re.compile(r"(?P<n>\d+)\s*/\s*(?P<total>\d+)")
_TOTAL = re.compile(
    rf"""["']?(?<![\w/])(?:(?:max|total)_?(?:train(?:ing)?_?)?(?:steps?|iters?|iterations|updates)|num_(?:train(?:ing)?_)?(?:steps|iters|iterations))["']?\s*[:=]\s*["']?(?P<n>{NUMBER})"""
)
_LOSS = re.compile(
    r"(?<![a-z])(?:\w*loss|objective|reward|rewards?_\w+|return|nll\w*|ppl|perplexity)(?![a-z])",
    re.IGNORECASE,
)
_OTHER_METRIC = re.compile(
    r"(?<![a-z])(?:lr|learning_rate|grad_?norm|gnorm|acc\w*|kl|entropy|tokens?\w*|throughput\w*|(?:iter|step|batch)_time(?:_\w+)?|(?:it|iter|step|sample)s?(?:_per_sec\w*|/s)|mfu|tps|wps|speed\w*)(?![a-z])",
    re.IGNORECASE,
)
_EVALUATED = re.compile(
    r"(?<![A-Za-z])(?:val|valid|validation|eval|evaluation|dev|test)(?![a-z])", re.IGNORECASE
)
_ABOUT = {
    "event",
    "type",
    "mode",
    "split",
    "phase",
    "stage",
    "kind",
    "name",
    "section",
    "tag",
    "task",
    "action",
    "message",
    "msg",
    "op",
    "key",
}
SUMMARY = ("train_runtime", "train_samples_per_second")


_MESSAGE = re.compile(r""""(?:message|msg|text|MESSAGE|event|log)"\s*:\s*("(?:[^"\\]|\\.)*")""")
_NUMBERED = re.compile(r"(?i)(?:step|iter\w*|batch|epoch|update)s?\W*\d|\d+/\d+")


def message(text: str) -> str | None:
    """What a logger's JSON object says in words, where a counter is among them (bunyan, loguru, python-json-logger)."""
    for match in _MESSAGE.finditer(text):
        if _NUMBERED.search(match[1]) is None:
            continue
        try:
            said = json.loads(match[1])
        except ValueError:
            continue
        if isinstance(said, str):
            return plain(said).text
    return None


def looks_like_one(text: str, brace: int) -> bool:
    """Whether a dict with string keys begins at the brace."""
    return _START.match(text, brace) is not None


def total(text: str) -> int | None:
    """The total that a record gives beside its counter, under a name like `max_steps`."""
    match = _TOTAL.search(text[:_LOOKED_AT])
    return count(match["n"]) if match else None


def read(record: Record, brace: int) -> Reading | None:
    """The counter of a dict, or that it shows metrics of training without one."""
    text = record.text[brace : brace + _LOOKED_AT]
    head = record.text[:brace]
    entries = [(match["key"], match["value"].strip().strip("\"'")) for match in _ENTRY.finditer(text)]
    number, limit, epoch, epochs, named = None, None, None, None, ""
    for key, value in entries:
        if "/" in key and "/" in value and counter(key.split("/")[0]) is Counter.CURRENT:
            first, _, second = value.partition("/")  # ms-swift: 'global_step/max_steps': '5/94'
            number, limit, named = count_or_none(first), count_or_none(second), key
            continue
        kind = counter(key.rsplit("/", 1)[-1])
        pair = _OUT_OF.fullmatch(value)  # "iter": "90/159"
        value, of = (pair["n"], int(pair["total"])) if pair else (value, None)
        if kind is None or ("/" in key and _EVALUATED.search(key)):
            continue
        if kind is Counter.EPOCH:
            epoch = _float(value) if epoch is None else epoch
            epochs = of if epochs is None else epochs
        elif kind is Counter.TOTAL:
            limit = count_or_none(value) if limit is None else limit
        elif kind is Counter.CURRENT and (number is None or _is_better(key, named)):
            found = count_or_none(value)
            if found is not None:
                number, named = found, key
                limit = of if of is not None else limit
    about, why = _about(head, entries)
    form = Form.KEYED if number is not None else Form.METRICS
    key = f"{form}:{record.source}:dict:{named}"
    if about is not None:
        return Reading(form, key, number, limit, epoch, about, why=why)
    metrics = [name for name, _ in entries if not _EVALUATED.search(name)]
    losses = any(_LOSS.search(name) for name in metrics)
    others = any(_OTHER_METRIC.search(name) for name in metrics)
    if number is None and not (losses and (others or epoch is not None)):
        return None
    if not losses and any(_EVALUATED.search(name) for name, _ in entries):
        return Reading(
            form, key, number, limit, epoch, Topic.EVALUATION, why="its metrics are an evaluation's"
        )
    strong = losses or others
    if not strong:
        key += ":" + ",".join(name for name, _ in entries)[:100]
    why = "" if strong else NO_METRICS
    return Reading(form, key, number, limit, epoch, strong=strong, why=why, epochs=epochs)


def _about(head: str, entries: list[tuple[str, str]]) -> tuple[Topic | None, str]:
    found = topic(head)
    if found is not None:
        return found, f"the text before the dict is about {found}"
    if any(key in SUMMARY for key, _ in entries):
        return Topic.MENTION, "the summary of a finished training"
    for key, value in entries:
        if key.lower() in _ABOUT and (found := topic(value)) is not None:
            return found, f"{key} says that it is about {found}"
    return None, ""


def _is_better(key: str, named: str) -> bool:
    """Whether a second counter is the more telling one: a global one, or an iteration beside a batch."""
    return "global" in key and "global" not in named


def count_or_none(text: str) -> int | None:
    text = text.strip()
    return count(text) if text[:1].isdigit() else None


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
