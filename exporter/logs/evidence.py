"""What stands beside a counter: metrics of training, metrics of an evaluation, times and rates."""

from __future__ import annotations

import re
from functools import lru_cache

from exporter.logs.words import words

_METRIC = re.compile(
    r"\w*loss\w*|lr\w*|learning|rate|grad\w*|g?norm|ppl|perplexity|acc|accuracy|mfu|tflops?|flops|throughput|tps|wps|ups"
    r"|rewards?|returns?|kl|entropy|eta|elapsed|time|speed|mem\w*|sec\w*|ms|score\w*|cost|nll\w*|bleu|psnr|sps|fps|dt|took"
    r"|ips|mse|mae|rmse|bpc|bpb|dice|iou|auc|skipped|remaining|duration|latency|samples?|tok\w*|images?|error|err|xent|regulari[sz]ation"
    r"|logprob\w*|objective\w*|energy|forces?|consumption|bits|margin|fid|wer|cer|learn|fitness|precision|recall|map|f"
)
_TIMING = re.compile(
    r"lr\w*|learning|grad\w*|gnorm|time|eta|elapsed|speed|mfu|mem\w*|tps|wps|avg|throughput|tok\w*|samples?|ms|it|sec|fps|dt"
)
_TRAINED = re.compile(r"(?i)loss|train|grad|(?<![a-z])lr(?![a-z])")
_EVALUATED = re.compile(r"cv|val|valid|validation|eval|evaluation|dev|test")
_PAIR = re.compile(
    r"(?P<name>[A-Za-z_][\w/@.%-]*(?:[ (]+[A-Za-z_][\w/@.%-]*){0,3}\)?)[\s:=|(\[#\"'*•]*[-+~]?(?:\d|nan\b|inf\b|n/a\b)"
)
_RATE = re.compile(r"\d ?(?:[A-Za-z]+/s(?:ec\w*)?|s/[A-Za-z]+|ms|sec(?:onds?)?|s|[Ii]mg/sec)\b")
_HAS_EVALUATED = re.compile(
    r"(?<![A-Za-z])(?i:val|valid|validation|eval|evaluation|dev|test)(?![a-z])(?!(?:[ _]?\w+)?\s*[:=]?\s*n/?a\b)"
)


@lru_cache(maxsize=8192)
def is_metric(name: str) -> bool:
    """Whether a name is one of a training metric, a time or a rate."""
    return any(_METRIC.fullmatch(word) for word in words(name))


@lru_cache(maxsize=8192)
def _is_timing(name: str) -> bool:
    return any(_TIMING.fullmatch(word) for word in words(name))


@lru_cache(maxsize=8192)
def is_evaluated(name: str) -> bool:
    """Whether a metric's name says that it was measured in an evaluation."""
    return any(_EVALUATED.fullmatch(word) for word in words(name))


def has_metrics(text: str) -> bool:
    """Whether a piece of text shows a training metric, a time or a rate with its number."""
    for match in _PAIR.finditer(text):
        if is_metric(match["name"]):
            return True
    return _RATE.search(text) is not None


def shows_evaluation(text: str) -> bool:
    """Whether a piece of text shows a metric of an evaluation."""
    return _HAS_EVALUATED.search(text) is not None


def is_evaluation_report(tail: str) -> bool:
    """Whether what follows a counter is an evaluation's result: it begins with one, or shows one and no timing."""
    if not shows_evaluation(tail):
        return False
    first = next(words(tail), "")
    if _EVALUATED.fullmatch(first):
        return True
    names = [match["name"] for match in _PAIR.finditer(tail)]
    if any(is_evaluated(name) and "time" in words(name) for name in names):
        # How long it took: it stands beside nothing but the evaluation's own, or a loss of training.
        return not any(_TRAINED.search(name) is not None and not is_evaluated(name) for name in names)
    return not any(_is_timing(name) and not is_evaluated(name) for name in names)
