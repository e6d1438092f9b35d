"""Counters without a name, or with one letter for it: `[1, 2000] loss: 2.1`, `100 | loss 6.2`, `E001 | B00010/10000`.

Nothing in one such record says that it counts iterations: it is taken only where the number grows over several.
"""

from __future__ import annotations

import re

from exporter.logs.evidence import has_metrics, is_metric, shows_evaluation
from exporter.logs.numbers import count
from exporter.logs.reading import Form, Reading, shape
from exporter.logs.words import is_alarm, topic, words
from exporter.logs.wrappers import Record

_NO_NAME = "a number without a name"
# What loggers put before a message; the time since the start may be among it (XLM).
_HEAD = r"\A(?:[\s\]:>|-]|\[[A-Za-z_.\s]*\]|(?:INFO|DEBUG)\b|\d+:\d\d:\d\d(?=\s))*"
# `[epoch, batch] loss: …`, and YOLACT's `[  0]     520 || B: 3.451 | C: 2.964`
_TUPLE = re.compile(_HEAD + r"\[\s*(?P<e>\d+)\s*(?:,\s*(?P<n>\d+)\s*\]|\]\s+(?P<m>\d[\d,]*)(?=\s*\|))")
_BARE = re.compile(
    _HEAD
    + r"(?:\[\s*(?P<a>\d[\d,]*)\s*(?:\||\])|#?(?P<b>\d[\d,]*)(?!:\d\d)(?:\s*/\s*(?P<total>\d[\d,]*))?\s*"
    + r"(?:[|:]|[-=]+>|\s-\s|\s{2,}|\t|\s(?=(?:train|loss)\b)"
    + r"|(?(total),\s+(?=[A-Za-z]\w*\s*[:=])|,\s+(?=\w*loss\w*\s*[:=]))))"
)
# RAFT's `[  100, 0.0000250]  0.45, 0.62`, and Tacotron's `Train loss 120 0.354`.
_VALUED = re.compile(
    r"\A\s*\[\s*(?P<n>\d+)\s*,\s*\d*\.\d+(?:e-?\d+)?\s*\]\s+-?\d|\A\W*(?:train\w*\s+)?loss:?\s+(?P<m>\d+)\s+(?=-?\d+\.\d)",
    re.IGNORECASE,
)
# `Progress: 10/200 (5.0%) loss: 2.1`: the percentage is the pair's.
_SHARE = re.compile(
    r"(?<![\w./\[(-])(?P<n>\d[\d,]*)\s?/\s?(?P<total>\d[\d,]*)(?:\s*[\[(]\s*|\s?=\s?)(?P<share>\d{1,3}(?:\.\d+)?)\s?%"
)
_MEASURED = re.compile(r"(?i)(?:acc\w*|correct|top-?\d|precision|recall|score)\W*\Z")
# `After 100 steps the loss is 2.3`, `5000 5% (0m 21s) 2.41`, `0m 12s (- 3m 1s) (5 6%) 1.53`.
_AFTER = re.compile(
    r"\A\W*(?:after\s+)?(?P<n>\d[\d,]*)\s+(?:training |train )?(?:steps|iterations|iters|batches|updates|epochs)\b"
    r"|(?:\A\s*|\()(?P<m>\d+)\s+\d{1,3}%(?=\)| \()"
    r"|\A\s*(?P<k>\d[\d,]*) iter(?:ation)?s?, \d+ epochs?\b",  # Chainer's bar
    re.IGNORECASE,
)
_LETTER = (
    r"(?<![\w.])(?P<{0}>ep|[A-Za-z])(?:\s*[:=#]\s*|\s+|(?=\d))"
    r"(?P<{1}>\d+)(?:\s*/\s*(?P<{2}>\d+))?(?![\w%]|\.\d|:\d\d)"
)
_LETTERS = re.compile(
    r"\A[\s\]:>|\[(-]*"
    + _LETTER.format("a", "n", "of")
    + r"(?:[\s\]|,:;)/\[(-]*"
    + _LETTER.format("b", "m", "to")
    + ")?"
)
_EPOCH_LETTERS = ("e", "ep")
_COUNTING = (*_EPOCH_LETTERS, "b", "i", "k", "n", "s", "t")
_FOLLOWING = re.compile(r"\s+([A-Za-z]{4,})")
_TRANSFER = re.compile(r"\d\s?[KMGTkmgt]?i?B/s")
_FRACTION = re.compile(r"\d\.\d|\de[-+]?\d|nan\b|inf\b")
_VALUES = re.compile(r"[:=]\s*[-+]?\d+\.\d+\b.*[:=]\s*[-+]?\d+\.\d+\b")


def read(record: Record, epoch: float | None) -> Reading | None:
    """A number, then metrics. `epoch` is what the record shows of it elsewhere."""
    text = record.text
    shared = _shared(record)
    if shared is not None:
        return shared
    pair = _TUPLE.match(text)
    match = pair or _BARE.match(text)
    if match is None:
        valued = _VALUED.match(text)
        if valued is not None and _FRACTION.search(text, valued.end() - 1) is not None:
            key = f"{Form.BARE}:{record.source}:valued:{valued['n'] is None}"
            return Reading(Form.BARE, key, int(valued["n"] or valued["m"]), strong=False, why=_NO_NAME)
        if record.label is not None and has_metrics(text[:80]):
            return Reading(Form.BARE, f"{Form.BARE}:{record.source}:label", record.label, strong=False)
        return _counted(record) or _lettered(record)
    tail = text[match.end() :]
    if _TRANSFER.search(tail):
        return None
    first = next(words(tail), "")
    # Behind an epoch and its batch values of any names are metrics.
    measured = has_metrics(tail[:80]) or (pair is not None and _VALUES.search(tail) is not None)
    if not measured or (topic(tail[:24]) is not None and topic(first) is not None):
        return _reported(record, match, tail, first)
    number = count((pair["n"] or pair["m"]) if pair else match["a"] or match["b"])
    if number is None:
        return None
    at = float(pair["e"]) if pair else epoch
    key = f"{Form.BARE}:{record.source}:{shape(text[: match.end()])}"
    total = None if pair else count(match["total"] or "x")
    return Reading(Form.BARE, key, number, total, at, strong=False, why=_NO_NAME)


def _shared(record: Record) -> Reading | None:
    """A count with its total and the percentage that they make, before metrics."""
    match = _SHARE.search(record.text[:200]) if "%" in record.text else None
    if match is None:
        return None
    head, number, total = record.text[: match.start()], count(match["n"]), count(match["total"])
    if number is None or not total or abs(100 * number / total - float(match["share"])) > 1:
        return None
    if topic(head) is not None or _MEASURED.search(head) or not has_metrics(record.text[match.end() :]):
        return None
    return Reading(Form.KEYED, f"{Form.KEYED}:{record.source}:{shape(head)}:%:{total}", number, total)


def _reported(record: Record, match: re.Match[str], tail: str, first: str) -> Reading | None:
    """`[100] valid_0's auc: 0.9`: boosting that shows no other metrics than those of its evaluation."""
    number = count(match.groupdict().get("a") or "x")
    if number is None or not shows_evaluation(tail[:80]) or _FRACTION.search(tail[:80]) is None:
        return None
    key = f"{Form.OTHER}:{record.source}:reported:{first}"
    return Reading(Form.OTHER, key, number, strong=False, why="its metrics are an evaluation's")


def _counted(record: Record) -> Reading | None:
    """A number with its unit or percentage behind it, then values."""
    match = _AFTER.search(record.text[:120])
    if match is None or is_alarm(record.text):
        return None
    if match["k"] is not None:
        return Reading(
            Form.BARE, f"{Form.BARE}:{record.source}:iter", count(match["k"]), strong=False, why=_NO_NAME
        )
    tail = record.text[match.end() :]
    if _FRACTION.search(tail) is None or topic(tail) is not None or (match["n"] and not has_metrics(tail)):
        return None
    number = count(match["n"] or match["m"])
    return Reading(
        Form.BARE,
        f"{Form.BARE}:{record.source}:counted:{match['n'] is None}",
        number,
        strong=False,
        why=_NO_NAME,
    )


def _lettered(record: Record) -> Reading | None:
    """`ep 3 b 1/100`, `e:3 i:200`, `s=10`: letters for the names of counters."""
    text = record.text
    match = _LETTERS.match(text)
    if match is None or is_alarm(text) or _FRACTION.search(text, match.end()) is None:
        return None
    following = _FOLLOWING.match(text, match.end())
    if following is not None and not is_metric(following[1]):
        return None  # `k=3 neighbors: accuracy 0.9`
    name, number, total, epoch = match["a"].lower(), match["n"], match["of"], None
    if name not in _COUNTING:
        return None
    if match["b"] is not None and match["b"].lower() in _COUNTING and name in _EPOCH_LETTERS:
        epoch, number, total = float(match["n"]), match["m"], match["to"]
    key = f"{Form.BARE}:{record.source}:{name}:{(match['b'] or '').lower()}:{total}"
    return Reading(
        Form.BARE, key, int(number), int(total) if total else None, epoch, strong=False, why=_NO_NAME
    )
