"""What words around a number say: which names count iterations, and which text is about something else.

The vocabularies are those of the training frameworks' own messages; they are matched as whole words, with
underscores, digits and camel case as borders.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache


class Topic(StrEnum):
    """What a record is about, where it is not training itself."""

    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    COMPILATION = "compilation"
    DATA = "data preparation"
    MENTION = "a mention"


class Counter(StrEnum):
    """What a name counts."""

    CURRENT = "current"
    MICRO = "micro"  # micro batches within an iteration
    TOTAL = "total"
    EPOCH = "epoch"


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SINGULAR = {
    "step",
    "iter",
    "iteration",
    "it",
    "itr",
    "batch",
    "update",
    "minibatch",
    "microbatch",
    "microstep",
}
_PLURAL = {"steps", "iters", "iterations", "its", "batches", "updates", "up"}
_INDEX = {"num", "no", "number", "idx", "index", "id", "count", "counter", "i"}
_DONE = {
    "current",
    "cur",
    "curr",
    "completed",
    "complete",
    "finished",
    "done",
    "trained",
    "global",
    "elapsed",
}
_TRAIN = {"train", "training", "trainer"}
_PLAIN = {
    *_DONE,
    *_TRAIN,
    *(
        "optimizer",
        "optim",
        "opt",
        "optimization",
        "gradient",
        "grad",
        "inner",
        "local",
        "learner",
        "learning",
    ),
    *("outer", "policy", "epoch", "mini", "the", "sgd", "main"),
}
_LIMIT = {"max", "maximum", "total", "num", "n", "target", "planned"}


@lru_cache(maxsize=4096)
def counter(name: str) -> Counter | None:
    """What a name such as `global_step`, `train/numUpdates` or `max_iters` counts; None where it counts no training."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return None
    if words[-1] in _INDEX and len(words) > 1 and words[-2] in _SINGULAR:
        words.pop()
    last, others = words[-1], set(words[:-1])
    if last in ("epoch", "epochs", "ep"):
        if others & _LIMIT:
            return None
        return Counter.EPOCH if others <= _PLAIN and "learning" not in others else None
    if last in _SINGULAR:
        if others & _LIMIT and others <= _LIMIT | _PLAIN | _SINGULAR:
            return Counter.TOTAL
        if "micro" in others or last.startswith("micro"):
            return Counter.MICRO
        return Counter.CURRENT if others <= _PLAIN | _SINGULAR else None
    if last in _PLURAL:
        if last == "updates" and others - _TRAIN == {"num"}:
            return Counter.CURRENT  # fairseq's num_updates
        if not others or (others & _DONE and others <= _PLAIN):
            return Counter.CURRENT
        return Counter.TOTAL if others <= _LIMIT | _PLAIN else None
    return None


def _words(*stems: str) -> str:
    return r"(?<![A-Za-z])(?:" + "|".join(stems) + r")(?![a-z])"


_TOPICS = (
    (
        Topic.CHECKPOINT,
        _words(
            r"check-?point\w*",
            "ckpts?",
            "sav(?:e[sd]?|ing)",
            "load(?:s|ed|ing)?",
            r"restor\w+",
            "writ(?:e|es|ten|ing)",
            "shards?",
            r"upload\w*",
            r"dump\w*",
            r"snapshot\w*",
            r"serializ\w+",
        ),
    ),
    (
        Topic.EVALUATION,
        _words(
            r"eval(?:s|uat\w+|uation)?",
            r"vali?(?:d|dat\w+)?",
            "test(?:s|ed|ing|set)?",
            "dev",
            r"infer(?:ence|ring|red)?",
            r"predict\w*",
            "sanity",
            "benchmarks?",
            "scor(?:e|ed|ing)",
        ),
    ),
    (
        Topic.COMPILATION,
        _words(
            r"compil\w+",
            "warm(?:ing)?[ _-]?up",
            r"autotun\w*",
            "captur(?:e|ed|es|ing)",
            "building?",
            "built",
            r"trac(?:e|ed|ing)",
            r"jitt?\w*",
            r"linking",
        ),
    ),
    (
        Topic.DATA,
        _words(
            r"download\w*",
            r"tokeni[sz]\w*",
            r"pre-?process\w*",
            "process(?:ed|ing)",
            "mapp?(?:ing|ed)?",
            r"filter\w*",
            r"generat\w+",
            "grouping",
            "pack(?:ing|ed)",
            r"extract\w*",
            r"shuffl\w*",
            "scann?(?:ing|ed)?",
            r"index(?:ing|ed)",
            r"cach(?:ed|ing)",
            r"resolv\w+",
            r"fetch\w*",
            r"prepar\w+",
            r"collect\w*",
            r"collat\w+",
            r"merg\w+",
            r"convert\w*",
            r"encod\w+",
            "creating",
            "reading",
            "parsing",
            "adding",
            r"unpack\w*",
            r"flatten\w*",
            "casting",
            "computing",
            r"verif\w+",
            r"calibrat\w+",
            r"quanti[sz]\w+",
            "pruning",
            "sampling",
            r"rollouts?",
            r"\w*experience",
            "num_proc",
            "copying",
            "deleting",
            r"install\w*",
            r"pull(?:ing|ed)",
            r"import\w*",
            r"export\w*",
            "prompts?",
            "requests?",
            "files",
            "images?",
            "class",
            "decod(?:e|ed|ing)",
            r"analy[sz]\w+",
            "hashing",
            "splitting",
            "estimating",
            "clustering",
            "embedding texts",
            "featuri[sz]ing",
            "initiali[sz]ing",
            "setting",
        ),
    ),
)
_TOPIC = {topic: re.compile(pattern, re.IGNORECASE) for topic, pattern in _TOPICS}
_ANY_TOPIC = re.compile("|".join(f"(?:{pattern})" for _, pattern in _TOPICS), re.IGNORECASE)

_MENTION = re.compile(
    r"(?<![A-Za-z])(?:at|from|after|for|to|every|until|till|by|of|on|than|since|before|per|next|best|last|first|final|skip\w*"
    r"|resum\w*|start\w*|begin\w*|will|improvement|patience|heart-?beat\w*|watchdog|median|mean|avg|average|slow\w*|stuck"
    r"|wait\w*|remaining|estimated|expected|schedul\w*|min|max|num|total|size|fps|nan|skipped|interval|limit|reach\w*"
    r"|warm-?up|save|stop\w*|error|exception|fail\w*|rais\w*|in|with|over|during|between|via|about|only|each|all|initial)"
    r"\W*\Z",
    re.IGNORECASE,
)
_ALARM = re.compile(
    r"(?i:(?<![a-z])(?:heart-?beat\w*|watchdog|traceback)(?![a-z]))|\b[A-Z]\w+(?:Error|Exception)\b"
)
_OLD = re.compile(_words("best", "worst", "previous", r"resum\w+", "patience", r"improv\w+"), re.IGNORECASE)


def topic(text: str) -> Topic | None:
    """What a piece of text is about, by its first telling word; None where it may well be training."""
    if _ANY_TOPIC.search(text) is None:
        return None
    found = [(match.start(), one) for one, pattern in _TOPIC.items() if (match := pattern.search(text))]
    return min(found)[1] if found else None


def is_mention(before: str) -> bool:
    """Whether the words right before a counter make it a mention in a sentence (`saved at iteration 5`)."""
    return _MENTION.search(before[-24:]) is not None or _OLD.search(before) is not None


def is_alarm(text: str) -> bool:
    """Whether a text is a heartbeat's or an error's: the counter in it is that of something else, or old."""
    return _ALARM.search(text) is not None


_TRAINING = re.compile(
    _words(
        "train(?:ing|er)?",
        "fine-?tun(?:e|ing)",
        "steps?",
        "iter(?:ation)?s?",
        "epochs?",
        "progress",
        "optimi[sz]\\w+",
        "learning",
    ),
    re.IGNORECASE,
)


def is_training(text: str) -> bool:
    """Whether a bar's description names training."""
    return _TRAINING.search(text) is not None
