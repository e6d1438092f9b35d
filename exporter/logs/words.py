"""What words around a number say: which names count iterations, and which text is about something else.

The vocabularies are those of the training frameworks' own messages. Texts are looked at word by word, with
underscores, digits and camel case as borders; what a word says is remembered, as logs use few.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
    OTHER = "other"  # what an iteration may be beside: episodes, rounds, generations, frames


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def words(text: str) -> Iterator[str]:
    """The words of a text, in lower case."""
    for match in _WORD.finditer(text):
        yield match[0].lower()


_SINGULAR = {
    "step",
    "iter",
    "iteration",
    "iterate",
    "it",
    "itr",
    "batch",
    "update",
    "minibatch",
    "microbatch",
    "microstep",
}
_PLURAL = {"steps", "iters", "iterations", "its", "batches", "updates", "nupdates", "up"}
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
AMOUNTS = ("samples", "tokens", "examples", "sequences")
"""What data is counted in: progress only where metrics stand beside it."""
_OTHER = {
    *(
        "episode",
        "episodes",
        "eps",
        "round",
        "rounds",
        "generation",
        "generations",
        "gen",
        "timestep",
        "timesteps",
    ),
    *AMOUNTS,
    *("frames", "tick", "kimg", "games", "rollout"),
}
_ACTS = {"env", "environment", "actor", "agent", "sim"}
_LIMIT = {"max", "maximum", "total", "num", "n", "target", "planned"}


@lru_cache(maxsize=4096)
def counter(name: str) -> Counter | None:
    """What a name such as `global_step` or `max_iters` counts; None where it counts no training."""
    parts = list(words(name))
    if not parts:
        return None
    if parts[-1] in _INDEX and len(parts) > 1 and (parts[-2] in _SINGULAR or parts[-2] == "epoch"):
        parts.pop()
    last, others = parts[-1], set(parts[:-1])
    if last in _OTHER:
        return Counter.OTHER if others <= {"total", "communication", "comm", "fl", "global", "misc"} else None
    if others & _ACTS and last in _SINGULAR | _PLURAL:
        return Counter.OTHER
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


_TOPICS = (
    (
        Topic.CHECKPOINT,
        r"check-?points?|checkpointing|ckpts?|sav(?:e[sd]?|ing)|load(?:s|ed|ing)?|restor\w+|writ(?:es?|ten|ing)|shards?"
        r"|upload\w*|dump\w*|snapshot\w*|serializ\w+",
    ),
    (
        Topic.EVALUATION,
        r"evals?|evaluat\w+|evaluation|cv|vali?|valid|validat\w+|test(?:s|ed|ing|set)?|dev|infer(?:ence|ring|red)?|predict\w*"
        r"|sanity|benchmarks?|scor(?:ed|ing)",
    ),
    (
        Topic.COMPILATION,
        r"compil\w+|warm|warming|warm-?up|autotun\w*|captur(?:e[sd]?|ing)|building|built|trac(?:ed|ing)|jit\w*|linking",
    ),
    (
        Topic.DATA,
        r"download\w*|tokeni[sz]\w*|preprocess\w*|process(?:ed|ing)|map(?:ping|ped)?|filter\w*|generat\w+|grouping"
        r"|pack(?:ing|ed)|extract\w*|shuffl\w*|scann?(?:ing|ed)?|index(?:ing|ed)|cach(?:ed|ing)|resolv\w+|fetch\w*"
        r"|prepar\w+|collect(?:s|ed|ing)?|collat\w+|merg\w+|convert\w*|encod\w+|creating|reading|parsing|adding|unpack\w*"
        r"|flatten\w*|casting|comput(?:ed|ing)|verif\w+|calibrat\w+|quanti[sz]\w+|pruning|sampling|rollouts?|\w*experience"
        r"|proc|copying|deleting|install\w*|pull(?:ing|ed)|import\w*|export\w*|prompts?|requests?|files?|images?|class"
        r"|decod(?:ed?|ing)|analy[sz]\w+|hashing|splitting|estimating|clustering|featuri[sz]ing|initiali[sz]ing|setting"
        r"|receiv\w+|counting|layers?|rendering|simulat\w+|searching|crawling|cleaning|dedup\w*|embedding|datasets?|finding",
    ),
)
_TOPIC_OF_WORD = tuple((topic, re.compile(pattern)) for topic, pattern in _TOPICS)


@lru_cache(maxsize=16384)
def _topic_of(word: str) -> Topic | None:
    return next((topic for topic, pattern in _TOPIC_OF_WORD if pattern.fullmatch(word)), None)


def topic(text: str, *, apart_from: Topic | None = None) -> Topic | None:
    """What a piece of text is about, by its first telling word; None where it may well be training."""
    for word in words(text):
        found = _topic_of(word)
        if found is not None and found is not apart_from:
            return found
    return None


_MENTIONING = re.compile(
    r"at|from|after|for|to|every|until|till|by|of|on|than|since|before|per|next|best|last|first|final|skip\w*|resum\w*"
    r"|start\w*|begin\w*|will|improvement|patience|heart-?beats?|watchdog|median|mean|avg|average|slow\w*|stuck|wait\w*"
    r"|remaining|estimated|expected|schedul\w*|min|max|num|total|size|fps|nan|skipped|interval|limit|reach\w*|warm-?up|save"
    r"|stop\w*|error|exception|fail\w*|rais\w*|in|with|over|during|between|via|about|only|each|all|initial"
)
_OLD = re.compile(r"best|worst|previous|resum\w+|patience|improv\w+")
_LIMITING = {
    "total",
    "max",
    "maximum",
    "min",
    "minimum",
    "every",
    "number",
    "warmup",
    "remaining",
    "until",
    "last",
}
_ACTING = re.compile(r"(?i)\b(?:actors?|env|environment)\s*\Z")  # `Actor Steps = 4000` are not the learner's
_OF = re.compile(r"(?<=\d) (?:out )?of (?=\d)")
_CLAUSE = re.compile(r"[|,;:)\]}>]")
_ALARM = re.compile(r"[Hh]eart-?[Bb]eat|[Ww]atchdog|Traceback|\b[A-Z]\w+(?:Error|Exception)\b")


@lru_cache(maxsize=16384)
def _mentions(word: str) -> bool:
    return _MENTIONING.fullmatch(word) is not None


@lru_cache(maxsize=16384)
def _is_old(word: str) -> bool:
    return _OLD.fullmatch(word) is not None


def is_mention(before: str, bare: str) -> bool:
    """Whether the words before a counter make it a mention in a sentence (`saved at iteration 5`, `best: step 5`).

    `bare` is the same without metrics and their numbers.
    """
    if "of " in before:
        before, bare = _OF.sub("/", before), _OF.sub("/", bare)
    found = list(words(before))
    if not found:
        return False
    clause = words(_CLAUSE.split(before)[-1])
    if _ACTING.search(before):
        return True
    last = list(words(bare))[-1:]
    return any(map(_mentions, last)) or any(map(_is_old, found)) or not _LIMITING.isdisjoint(clause)


def is_alarm(text: str) -> bool:
    """Whether a text is a heartbeat's or an error's: the counter in it is that of something else, or old."""
    return _ALARM.search(text) is not None


_TRAINING = re.compile(
    r"train(?:ing|er)?|fine|finetun(?:e|ing)|tuning|steps?|iter(?:ation)?s?|epochs?|progress|optimi[sz]\w+|learning|batch(?:es)?"
)


@lru_cache(maxsize=4096)
def _trains(word: str) -> bool:
    return _TRAINING.fullmatch(word) is not None


def is_training(text: str) -> bool:
    """Whether a bar's description names training."""
    return any(map(_trains, words(text)))


_SAMPLING = re.compile(
    r"denois(?:e|ing)|diffusing|roll(?:ing)?|unroll(?:ing)?|sample|samplers?|beam|play(?:s|ing|outs?)?|interacting"
    r"|synthesi[sz]ing|upsampling"
)
_LEARNS = {*_TRAIN, "epoch", "epochs", "finetuning", "tuning", "optimizing", "optimising"}


def is_sampling(text: str) -> bool:
    """Whether a bar's description says that a model is sampled from or acts, and not that it is trained on that."""
    found = set(words(text))
    return found.isdisjoint(_LEARNS) and any(map(_SAMPLING.fullmatch, found))
