"""Progress bars: tqdm, tqdm_loggable, rich, Keras, Ultralytics and others that draw n/total beside a bar."""

from __future__ import annotations

import re

from exporter.logs.numbers import NUMBER, count
from exporter.logs.reading import Form, Reading, shape
from exporter.logs.words import Topic, is_sampling, is_training, topic
from exporter.logs.wrappers import Record

# tqdm.std.tqdm.format_meter, tqdm 4: `desc:  45%|####     | 9/20 [00:03<00:04,  2.7it/s, loss=1]`
# alive-progress 3 draws an animation between the bar and the count.
_TQDM = re.compile(
    rf"\|\s*(?:[^\w\s|]+\s+)?(?P<n>{NUMBER})(?:it)?/(?P<total>{NUMBER}|\?)(?:it)?\s*\[(?P<rest>[^\]]*)"
)
# progressbar2: `10% (10 of 100) |##  | Elapsed Time: …`; fastprogress: `|---   | 25.00% [23/92 00:02<00:16 1.82]`.
_PERCENTAGES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?P<share>\d{{1,3}})%\s*\((?P<n>{NUMBER}) of (?P<total>{NUMBER})\)(?P<rest>.*)",
        rf"(?P<share>\d{{1,3}}(?:\.\d+)?)%\s*\[(?P<n>{NUMBER})/(?P<total>{NUMBER})(?P<rest>[^\]]*)\]",
        # tqdm with ncols=0 and in notebooks: `5% 5/100 [00:01<00:20, 4.9it/s]`
        rf"(?P<share>\d{{1,3}})%\s+(?P<n>{NUMBER})/(?P<total>{NUMBER})\s*\[(?P<rest>\d+:\d\d[^\]]*)\]?",
    )
)
_PERCENT = re.compile(r"\d{1,3}%\s*\Z")
# progress, as in many classification repositories: `Processing |####    | (10/391) Data: 0.001s | Loss: 1.2`
_PARENTHESES = re.compile(
    rf"\|[ #=>.\-█▉▊▋▌▍▎▏∙◉]*\|\s*\(\s*(?P<n>{NUMBER})\s*/\s*(?P<total>{NUMBER})\s*\)(?P<rest>.*)"
)
_OPEN = re.compile(rf"(?<![\w./])(?P<n>{NUMBER})it \[(?P<rest>[\d:]+,[^\]]*)\]?")
_LOGGABLE = re.compile(rf"(?P<n>{NUMBER}|-)(?:it)?/(?P<total>{NUMBER})(?:it)?\s+rate:(?P<rest>\S*)")
_GLYPHS = r"(?:[━╸╺─╌█▉▊▋▌▍▎▏▐░▒▓■□▪▫●○⣿⠿⣀]{4,}|\[[=>.#\-* ]{5,}\])"
_BEHIND_GLYPHS = re.compile(
    rf"{_GLYPHS}\s*(?:\d{{1,3}}(?:\.\d+)?%\s*)?(?P<n>{NUMBER})\s?/\s?(?P<total>{NUMBER})(?P<rest>.*)"
)
_BEFORE_GLYPHS = re.compile(rf"(?P<n>{NUMBER})\s?/\s?(?P<total>{NUMBER})\s*{_GLYPHS}(?P<rest>.*)")
_GLYPH_HINT = re.compile(_GLYPHS)
_UNIT = re.compile(
    r"(?:[\d.,]+|\?)\s*(?P<scale>[kKMG]?)(?P<unit>[A-Za-z]*)/s(?:ec\w*)?\b|s/\s?(?P<per>[A-Za-z]+)"
)
_UNITS = {
    "",
    "it",
    "its",
    "step",
    "steps",
    "iter",
    "iters",
    "iteration",
    "iterations",
    "batch",
    "batches",
    "ba",
}
_UNITS |= {"update", "updates", "item", "epoch", "epochs", "ep"}
_EPOCH = re.compile(r"(?i:(?<![a-z])ep(?:och)?s?)[\s:#=\[(]*(?P<epoch>\d+)(?:\s*/\s*(?P<epochs>\d+))?")
_EPOCH_ONLY = re.compile(r"(?i:(?:\w+\s+)?epochs?)\W*\Z")
_LEADING_PAIR = re.compile(r"\s*(?P<epoch>\d+)/(?P<epochs>\d+)\s+\S")
# torchtune's recipes: `epoch|global step|Loss: …`
_EPOCH_AND_STEP = re.compile(r"\s*(?P<epoch>\d+)\|(?P<step>\d+)\|")


def read(record: Record) -> Reading | None:
    """The bar that a record shows; None where it shows none."""
    text = record.text
    match = _TQDM.search(text)
    if match is not None:
        opened = text.rfind("|", 0, match.start())
        if opened >= 0:
            description = _PERCENT.sub("", text[:opened])
            return _reading(record, description, match, text[match.end() :])
    match = (_OPEN.search(text) if "it [" in text else None) or (
        _LOGGABLE.search(text) if "rate:" in text else None
    )
    if match is None and "| (" in text:
        match = _PARENTHESES.search(text)
    if match is None and _GLYPH_HINT.search(text):
        match = _BEHIND_GLYPHS.search(text) or _BEFORE_GLYPHS.search(text)
    if match is None and "%" in text:
        match = _with_percentage(text)
    if match is None:
        return None
    return _reading(record, text[: match.start()], match, text[match.end() :])


def _with_percentage(text: str) -> re.Match[str] | None:
    """A count and its total beside the percentage that they make."""
    for pattern in _PERCENTAGES:
        match = pattern.search(text)
        if match is None:
            continue
        n, total = count(match["n"]), count(match["total"])
        if n is not None and total and abs(100 * n / total - float(match["share"])) <= 1:
            return match
    return None


def _reading(record: Record, description: str, match: re.Match[str], tail: str) -> Reading:
    found = match.groupdict()
    n, total, rest = found["n"], found.get("total"), found["rest"] or ""
    description = description[-160:].replace("Progress on:", "").rstrip(" |:")
    number = count(n)
    limit = count(total) if total else None
    named = is_training(description) or _LEARNING.search(description + rest) is not None
    about = topic(description)
    if about is Topic.DATA and _DETECTED.search(description) is not None:
        about = Topic.EVALUATION
    why = f"bar about {about}" if about else ""
    unit = _unit(rest)
    if about is None and unit not in _UNITS:
        about, why = Topic.DATA, f"bar counts {unit}"
    sampling = about is None and is_sampling(description)
    if sampling:
        about, why = Topic.DATA, "bar about sampling"
    if (
        about is Topic.DATA
        and not sampling
        and named
        and not _DATASET.search(description)
        and unit in _UNITS
        and not _is_verb(description)
    ):
        about, why = None, ""
    if about is Topic.DATA and not sampling and _PROCESSING.fullmatch(description) and _LOSS.search(rest):
        about, why = None, ""
    form = Form.BAR if total else Form.OPEN_BAR
    epoch, epochs = _epoch(description)
    if epoch is None and "epoch" in rest:
        epoch, epochs = _epoch(rest)
    both = _EPOCH_AND_STEP.match(description)
    if both is not None:
        number, epoch, named = int(both["step"]), float(both["epoch"]), True
    elif unit in ("epoch", "epochs", "ep") or _EPOCH_ONLY.fullmatch(description.strip()):
        form, epoch = Form.EPOCH, float(number) if number is not None else None
    key = f"{form}:{record.source}:{shape(description)}:{limit}:{'nested' if record.nested else ''}"
    return Reading(
        form,
        key,
        number,
        limit,
        epoch,
        about,
        True,
        named,
        measured="=" in rest,
        unstarted=not number or n == "-",
        why=why,
        epochs=epochs,
        tail=tail.strip("] "),
    )


_LEARNING = re.compile(r"(?i)(?<![a-z])(?:lr|learning_rate)\s*[=:]")  # nothing else than training shows it
_DETECTED = re.compile(r"\bmAP\b|\bmAP@")  # a table of an evaluation's results that is drawn with a bar
_PROCESSING = re.compile(r"(?i)\s*process(?:ing|ed)\W*")
_LOSS = re.compile(r"(?i)(?<![a-z])loss\W*\d")
_DATASET = re.compile(r"(?i)dataset")


def _is_verb(description: str) -> bool:
    """Whether the description says what is done to data (`Scanning train images`), not what is trained on."""
    return re.search(r"\b[A-Za-z]+(?:ing|ed)\b", re.sub(r"(?i)\b\w*train\w*\b", "", description)) is not None


def _unit(rest: str) -> str:
    match = _UNIT.search(rest)
    if match is None:
        return ""
    unit = match["unit"] if match["per"] is None else match["per"]
    return (unit or "").lower()


def _epoch(description: str) -> tuple[float | None, int | None]:
    match = _EPOCH.search(description) or _LEADING_PAIR.match(description)
    if match is None:
        return None, None
    return float(match["epoch"]), int(match["epochs"]) if match["epochs"] else None
