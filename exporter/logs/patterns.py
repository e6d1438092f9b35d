"""Reading one record: which counter it shows, of what, and whether anything speaks for training.

The rules are about names and shapes of numbers, not about frameworks: a name that counts iterations, a number
that is a count, metrics beside it, and no word that makes it a mention, an evaluation or a checkpoint.
"""

from __future__ import annotations

import re
from dataclasses import replace

from exporter.logs import bars, dicts, nameless
from exporter.logs.evidence import has_metrics, is_evaluation_report, shows_evaluation
from exporter.logs.languages import in_english
from exporter.logs.numbers import NUMBER, count
from exporter.logs.reading import NO_METRICS, Form, Reading, shape
from exporter.logs.words import (
    AMOUNTS,
    Counter,
    Topic,
    counter,
    is_alarm,
    is_mention,
    is_sampling,
    topic,
    words,
)
from exporter.logs.wrappers import Record

_LOOKED_AT = 2000  # characters in which a counter may stand

_SEPARATOR = (
    r"(?:\s?\((?i:train)\w*\)\s*)?"
    r"(?:[\"'#]?\s*(?::=|:{1,3}|[=|]|=>|->)\s*[\"'\[(#]?\s*|\s*[\[(#]\s*#?|\s+(?:no\.?\s+|number\s+|is\s+)?[\[(#]?\s*|\s*\.{3,}\s*)"
)
_COUNTER = re.compile(
    r"(?:steps?|iter(?:ation|ate)?s?|itr|it|batch(?:es)?|updates?|up(?=\.\s)|epochs?|ep(?=\.\s)"
    r"|samples|tokens|examples|sequences|episodes?|rounds?|generations?|gen|frames|ticks?|kimg|games|rollout|nupdates)"
    r"(?P<index>[ _-]?(?:num|number|no|idx|index|id|count)(?![a-z])|_i(?![a-z]))?\.?"
    r"(?:\s(?:executed|completed|done|trained|elapsed|processed)(?=\s*[:=]))?"
    + _SEPARATOR
    + rf"(?P<n>{NUMBER})(?:\s*-\s*(?P<upto>\d+)(?=[\],]))?(?![\w%]|\.\d|:\d\d)"
    + rf"(?:\s*(?:/|(?<=\s)of\s|(?<=\s)out of\s|\|(?=\s*\d+\s*\]))\s*(?P<total>{NUMBER})(?![\w%]))?",
    re.IGNORECASE,
)
_NAME = re.compile(r"[A-Za-z_](?:[\w.-]|/(?=[A-Za-z_]))*\Z")
_BRACKETS = re.compile(
    r"(?P<epoch>\[\s*(?P<e>\d+)\s*(?:/\s*\d+\s*)?\]\s*)?"
    r"(?<!=)[\[(]\s*(?:[A-Za-z]+\s*:\s*(?P<of>\d+)\s*,\s*)?(?P<n>\d[\d,]*)\s*/\s*(?P<total>\d[\d,]*)\s*(?:\(\s*[\d.]+\s*%\s*\)\s*)?[\])]"
)
_EPOCH_PAIR = re.compile(
    r"(?i:epochs?|ep\.?|(?<![\w.])e(?=\d))\s*[:\[(#]?\s*(?P<e>\d+)(?:\s*\]?\s*[:|,\-–]\s*|\s+)\[?\s*(?P<n>\d[\d,]*)\s*/\s*(?P<total>\d[\d,]*)"
)
_UNIT_BEHIND = re.compile(
    r"(?:(?<=[\s:])\d+-(?P<upto>\d+)\s?(?i:batch(?:es)?|steps?|iters?)\b:)|(?<![\w./-])(?P<n>\d[\d,]*)\s*/\s*(?P<total>\d[\d,]*)\s+(?i:steps?|iterations?|iters?|batch(?:es)?|updates?)\b"
)
_EPOCH_NUMBER = (
    r"(?:\s*\(\w+\))?[\"']?(?:\s*[:=#|\[(])*\s*[\"']?(?P<epoch>\d+(?:\.\d+)?)(?:\s*/\s*(?P<epochs>\d+))?"
)
_EPOCH = re.compile(r"(?<![A-Za-z])(?i:epoch)s?" + _EPOCH_NUMBER)
_EPOCH_FIRST = re.compile(r"\W*(?i:ep)(?=\W{0,2}\d)" + _EPOCH_NUMBER)
_VALUES = re.compile(r"[:=\[(]\s*[-+]?\d+\.\d+.*[:=\[(]\s*[-+]?\d+\.\d+")
_TRAIN_EPOCH = re.compile(r"(?i:train\w*)\s*:\s*(?P<epoch>\d+)\s*\[")
_ONLY_BRACKETS = re.compile(r"\s*(?:\[[^\[\]]*\]\s*)+:?\s*\Z")
# DeepSpeed prints this when its engine is made (deepspeed/runtime/engine.py, _report_progress), before any step.
_DEEPSPEED_MADE = re.compile(r", skipped=0, lr=")
_DOING = re.compile(r"[\s\])}>:,.-]*([A-Za-z]+ing)\b(?!\s*[:=]\s*[-\d])")
_LOSS = re.compile(r"(?i)\bloss\s*[:=]?\s*-?\d")
_METRIC_AT = re.compile(
    r"(?i)\b(?:loss|perplexity|ppl|error|cost|reward|score)\b[^\d|,;=]*\bat\s+(?:global\s+)?\Z"
)
_VALUE_BEHIND = re.compile(r"\s*(?:[:=]|is\b)\s*[-+]?(?:\d+\.\d|nan|inf)")
_CONFIGURATION = re.compile(
    r"\b(?:\w*(?:Args|Arguments|Config\w*|Options|Params)|Namespace)\((?:\w+=[^()]*)?\Z"
)
_SUM = re.compile(
    r"(?i)\b(?:total|cumulative)\s+(?:(?:num(?:ber)?|no)\b\.?\s*)?(?:of\s+)?\Z"
)  # `Total num frames: 241664`
_UNIT_OF = re.compile(r"(?i)(?<![\w.:=/-])(?<!epoch )(?<!ep )(\d[\d,]*)\s\Z")
_PLURAL = re.compile(r"(?i)steps|iterations|iters|batches|updates")
_MILLISECONDS = re.compile(r"time \(ms\)", re.IGNORECASE)


def read(record: Record) -> Reading | None:
    """What the record shows; None where it shows no counter and no metrics at all.

    A logger's JSON is read for its message where that has more than words to say, or else for its fields.
    """
    text = record.text
    if not text or text.isspace():
        return None
    english = in_english(text)
    if english is not text:
        record, text = replace(record, text=english), english
    found = bars.read(record)
    if found is not None:
        return found
    brace = text.find("{")
    if brace >= 0 and dicts.looks_like_one(text, brace):
        said = dicts.message(text) if not text[:brace].strip() else None
        if said is not None:
            return read(replace(record, text=said)) or dicts.read(record, brace)
        summary = any(name in text for name in dicts.SUMMARY)
        head = _keyed(record, text[:brace], text) if brace and not summary else None
        return head if head is not None and head.form is Form.KEYED else dicts.read(record, brace) or head
    if not any(character.isdigit() for character in text):
        return None
    return _keyed(record, text[:_LOOKED_AT], text) or nameless.read(record, epoch_of(text)[0])


def _keyed(record: Record, text: str, whole: str) -> Reading | None:
    """The first name that counts iterations with its number."""
    near: Reading | None = None
    micro: Reading | None = None
    epoch: Reading | None = None
    other: Reading | None = None
    current: Reading | None = None
    several = "lobal" in text  # `inner iter: 3/8 | global iter: 13/5000`: the one that goes through counts
    for match in _COUNTER.finditer(text):
        start = match.start()
        left = _NAME.search(text[max(0, start - 48) : start])
        name_start = start - len(left[0]) if left else start
        if name_start and (text[name_start - 1].isalnum() or text[name_start - 1] in "?&"):
            continue  # a part of a word, or of an address: `GET /metrics?step=100`
        name = text[name_start : match.start("index") if match["index"] else start + _stem_length(match)]
        if match["index"]:
            name += match["index"]
        kind = counter(_last_component(name))
        growing = kind is Counter.TOTAL and name.lower().startswith("total")
        if growing:
            kind = Counter.OTHER  # `total_steps=2048 ep_rew_mean=1.2`: of the run so far, where it grows
        if kind is None or kind is Counter.TOTAL:
            continue
        if "/" in name and topic(name) is not None:
            continue
        number, end = count(match["upto"] or match["n"]), match.end()
        unit = _UNIT_OF.search(text, max(0, name_start - 24), name_start) if _PLURAL.fullmatch(name) else None
        if unit is not None and text[name_start + len(name) :][:1] == " " and not match["total"]:
            number, end = count(unit[1]), name_start + len(name)  # `train 6400 steps 0 of …`
        if number is None:
            if kind is Counter.EPOCH and epoch is None:
                epoch = _share(record, whole, name_start, match)
            continue
        limit = None if growing else _total(match, whole, number)
        reading = _judge(record, whole, name_start, end, kind, number, limit)
        if kind is Counter.EPOCH:
            epoch = epoch or reading
        elif kind is Counter.OTHER:
            amount = (growing or name.lower() in AMOUNTS) and not (
                has_metrics(whole[:start]) or has_metrics(whole[match.end() :])
            )
            other = other or (reading if reading.topic is None and not amount else None)
        elif reading.topic is not None:
            near = near or reading
        elif kind is Counter.MICRO:
            micro = micro or reading
        elif other is not None and name.lower() == "steps":
            continue  # `Episode 1/500 | Reward: 7 | Steps: 23`: how long the episode was
        elif several and not _is_global(text, name_start, name):
            current = current or reading
        elif current is not None and current.iteration == number:
            return current  # the same number twice: the first may have shown its total
        else:
            return reading
    if current is not None:
        return current
    if near is not None and (near.topic is not Topic.MENTION or epoch is None or not epoch.strong):
        return near
    return micro or _bracketed(record, whole) or epoch or other


def _share(record: Record, text: str, start: int, match: re.Match[str]) -> Reading | None:
    """`epoch = 0.104, train perp. = 412.1`: a part of an epoch, which moves as training does."""
    reading = _judge(record, text, start, match.end(), Counter.EPOCH, 0, None)
    if reading.topic is not None or not reading.strong:
        return None
    return replace(reading, form=Form.METRICS, iteration=None, epoch=float(match["n"].replace(",", "")))


def _is_global(text: str, start: int, name: str) -> bool:
    return "global" in name.lower() or text[:start].rstrip().lower().endswith("global")


def _stem_length(match: re.Match[str]) -> int:
    word = re.match(r"[A-Za-z]+", match[0])
    return len(word[0]) if word else 0


def _last_component(name: str) -> str:
    parts = [part for part in name.split("/") if part]
    return parts[-1] if parts else ""


def _total(match: re.Match[str], text: str, number: int) -> int | None:
    if match["total"]:
        return count(match["total"])
    beside = dicts.total(text)
    if beside is None and "/" in text:
        # The same number with a total, as fairseq prints it: `epoch 001:  900 / 1234 … num_updates=900`.
        pair = _EPOCH_PAIR.search(text[:200])
        if pair is not None and count(pair["n"]) == number:
            return count(pair["total"])
    return beside


def _judge(
    record: Record, text: str, start: int, end: int, kind: Counter, number: int, total: int | None
) -> Reading:
    head, tail = text[:start], text[end:]
    form = {Counter.EPOCH: Form.EPOCH, Counter.OTHER: Form.OTHER}.get(kind, Form.KEYED)
    key = f"{form}:{record.source}:{shape(head)}:{shape(text[start:end])}:{total if '/' in text[start:end] else None}"
    epoch, epochs = epoch_of(text)
    if kind is Counter.EPOCH:
        epoch, epochs = float(number), total

    def not_training(about: Topic, why: str) -> Reading:
        return Reading(form, key, number, total, epoch, about, why=why)

    # Data is prepared without a loss: `processed minibatch #3 of 900 (loss=0.19)` trains.
    about = topic(without_metrics(head), apart_from=Topic.DATA if _LOSS.search(tail) else None)
    if about is not None:
        return not_training(about, f"the text before the number is about {about}")
    if "(" in head and _CONFIGURATION.search(head) is not None:
        return not_training(Topic.MENTION, "a value of a configuration")
    metrics = has_metrics(head) or has_metrics(tail)
    if kind is Counter.OTHER:
        head = _SUM.sub("", head)
    # No sentences: `At iteration 50, rms=…`, `loss (for one batch) at step 200: 1.39`.
    begins = metrics and head.strip().lower() == "at"
    begins |= _VALUE_BEHIND.match(tail) is not None and _METRIC_AT.search(head) is not None
    if not begins and is_mention(head, without_metrics(head)):
        return not_training(Topic.MENTION, "the words before the number make it a mention")
    if _MILLISECONDS.search(head):
        return not_training(Topic.MENTION, "the number is a time")
    if is_alarm(text):
        return not_training(Topic.MENTION, "a heartbeat, watchdog or error message")
    if is_evaluation_report(tail) and form is not Form.EPOCH:
        if next(words(tail), "") in (
            "train",
            "training",
        ):  # both estimated: where nothing else shows progress
            form, key = Form.OTHER, f"{Form.OTHER}:{record.source}:{shape(head)}:estimate"
        else:
            return not_training(Topic.EVALUATION, "its metrics are those of an evaluation")
    about = _verb(tail)
    if about is not None:
        return not_training(about, f"what is done at the number is {about}")
    about = topic(tail[:40])
    if about is not None and not metrics and not shows_evaluation(tail):
        return not_training(about, f"the text behind the number is about {about}")
    alone = total is not None and not (head + tail).strip(" :=-*#.")
    strong = metrics or alone or (total is not None and _in_brackets_alone(text, start))
    why = "" if strong else NO_METRICS
    if not strong:
        key += shape(tail)
    unstarted = number == 0 and _DEEPSPEED_MADE.match(tail) is not None
    strong &= form is not Form.OTHER and not begins
    return Reading(form, key, number, total, epoch, None, strong, unstarted=unstarted, why=why, epochs=epochs)


def _verb(tail: str) -> Topic | None:
    """What `Evaluating`, `Saving` … right behind the number is about."""
    match = _DOING.match(tail)
    return topic(match[1]) if match else None


def _in_brackets_alone(text: str, start: int) -> bool:
    """Whether the counter stands in brackets that are all of the message: `[step=5/100,epoch=0]`."""
    opened = text.rfind("[", 0, start)
    return opened >= 0 and _ONLY_BRACKETS.match(text, opened) is not None


_MODULE = re.compile(r"(?i)\b\w+(?:(?:\.|::)\w+)*(?:\.|::)\w*train\w*(?:(?:\.|::)\w+)*")
_COUNTS = r"(?!(?i:\w*(?:epoch|step|iter|batch|update)))"
_PAIRS = re.compile(rf"{_COUNTS}[\w@./()-]+(?: {_COUNTS}[\w@./()-]+)?\s*[:=]\s*[-+]?\d[\w.%/+-]*")


def without_metrics(head: str) -> str:
    """The head without what does not say what the record is about.

    That is `name: number` pairs, whose names say what was measured, and the names of trainers' loggers.
    """
    head = _MODULE.sub(" ", head)
    return _PAIRS.sub(" ", head) if ":" in head or "=" in head else head


def epoch_of(text: str) -> tuple[float | None, int | None]:
    """The epoch that a record shows, and of how many."""
    match = _EPOCH.search(text) or _EPOCH_FIRST.match(text)
    if match is not None:
        return float(match["epoch"]), int(match["epochs"]) if match["epochs"] else None
    match = _TRAIN_EPOCH.search(text)
    return (float(match["epoch"]), None) if match else (None, None)


def _bracketed(record: Record, text: str) -> Reading | None:
    """`Epoch: [0][ 5/100] loss …`, `[ 5/100] loss …`, `epoch 002:  66 / 1234 loss=…`."""
    match = _EPOCH_PAIR.search(text[:200]) or _UNIT_BEHIND.search(text[:200])
    if match is None:
        for candidate in _BRACKETS.finditer(text[:200]):
            left = text[: candidate.start()].rstrip(" :")
            if re.search(r"(?i)epochs?(?:\(\w+\))?\Z", left) and candidate["e"] is None:
                continue  # the epoch's own pair
            match = candidate
    if match is None:
        return None
    found = match.groupdict()
    number = count(found.get("upto") or found["n"])
    total = count(found["total"]) if found["total"] else None
    head, tail = text[: match.start()], text[match.end() :]
    epoch, epochs = epoch_of(text)
    # Values of any names are metrics behind an epoch and its batch; or they stand before: `loss: 2.30  [ 64/60000]`.
    before = not tail.strip(" ]") and has_metrics(head)
    if number is None or not (has_metrics(tail) or before or (epoch is not None and _VALUES.search(tail))):
        return None
    own_epoch = found.get("e") or found.get("of")  # `[train: 35, 50 / 1000]`
    if own_epoch:
        epoch = float(own_epoch)
    key = f"{Form.KEYED}:{record.source}:{shape(head)}:[]:{total}"
    about = topic(without_metrics(head)) or topic(match[0])
    why = f"the text before the number is about {about}" if about else ""
    if about is None and is_sampling(head):
        about, why = Topic.DATA, "the text before the number is about sampling"
    return Reading(Form.KEYED, key, number, total, epoch, about, not before, why=why, epochs=epochs)
