"""What stands beside a counter: metrics of training, metrics of an evaluation, times and rates."""

from __future__ import annotations

import re

_METRIC = (
    r"\w*loss\w*|lr\w*|learning[ _]rate\w*|grad\w*|g?norm|ppl|perplexity|acc(?:uracy)?\w*|mfu|tflops?\w*|throughput\w*|tps|wps"
    r"|ups|rewards?\w*|returns?|\w*_return|kl\w*|entropy|eta|elapsed\w*|time\w*|\w+_time|speed|mem\w*|sec\w*|ms|score\w*|cost"
    r"|nll\w*|bleu|psnr|sps|fps|dt|took|ips|mse|mae|rmse|bpc|bpb|dice|iou|auc|skipped|remaining|duration|latency"
    r"|samples?\S*|tok\w*\S*|images?\S*|episodes?_\w+|f1\w*|error\w*|err|xent|logprob\w*|objective\w*|energy|forces?\w*"
)
_NAMED = re.compile(
    rf"(?<![A-Za-z])(?:{_METRIC})(?![A-Za-z])[^\d\n]{{0,24}}?(?<![\w.])[-+]?(?:\d|nan|inf|n/a)", re.IGNORECASE
)
_RATE = re.compile(
    r"\d\s*(?:\w+/s(?:ec\w*)?|s/\w+|(?:img|images?|samples?|tokens?|tok|examples?|words?|frames?|it|steps?)/s\w*|ms|sec(?:onds)?|s)\b",
    re.IGNORECASE,
)
_TIMING = re.compile(
    r"(?<![A-Za-z])(?:lr|learning[ _]rate|grad\w*|gnorm|\w*time\w*|eta|elapsed|speed|mfu|mem\w*|tps|wps|step_avg|tok\w*/s\w*"
    r"|samples?/s\w*|it/s|s/it|throughput)(?![A-Za-z])",
    re.IGNORECASE,
)
EVALUATED = re.compile(
    r"(?<![A-Za-z])(?:val|valid|validation|eval|evaluation|dev|test)(?![a-z])(?!\s*:?\s*n/?a)", re.IGNORECASE
)
_EVALUATED_FIRST = re.compile(r"\W*(?:val|valid|validat\w+|eval\w*|dev|test\w*)(?![a-z])", re.IGNORECASE)
_EVALUATED_PAIR = re.compile(
    r"(?<![A-Za-z])(?:val|valid|validation|eval|evaluation|dev|test)(?![a-z])[\w /@.-]*[:= ]\s*[-+]?\d[\d.]*\s*\w*",
    re.IGNORECASE,
)


def has_metrics(text: str) -> bool:
    """Whether a piece of text shows a training metric, a time or a rate with its number."""
    return _NAMED.search(text) is not None or _RATE.search(text) is not None


def is_evaluation_report(tail: str) -> bool:
    """Whether what follows a counter is an evaluation's result: it begins with one, or shows one and no timing."""
    if EVALUATED.search(tail) is None:
        return False
    if _EVALUATED_FIRST.match(tail):
        return True
    return _TIMING.search(_EVALUATED_PAIR.sub(" ", tail)) is None
