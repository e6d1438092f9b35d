"""Phrases by which logs say what their job is about to do: evaluate, save, compile, end."""

from __future__ import annotations

import re

from exporter.logs.model import Phase

_END = re.compile(
    r"(?<![a-z])(?:"
    r"training (?:run |job |loop |is |was |has |phase )*(?:been )?(?:complete[d]?|done|finished|ended|over)\b"
    r"|(?:finished|completed|done with|end of|ended) (?:the )?(?:model )?training\b(?! (?:epoch|it\b|iter|step|batch))"
    r"|train(?:ing)?_(?:completed?|finished|done|end(?:ed)?)\b"
    r"|`?Trainer\.fit`? stopped"
    r"|train_runtime\b"
    r"|loss for final step"
    r"|engine run finished"
    r"|total training time"
    r"|training time[: ]"
    r"|(?:training|'train') took "
    r"|\d+ epochs? completed in"
    r"|exiting program (?:at|after) iteration"
    r"|successfully finished\b"
    r"|all (?:epochs|iterations|steps) (?:are )?(?:done|complete[d]?|finished)"
    r"|max(?:imum)? (?:number of )?(?:epochs|steps|iterations|updates) (?:was |is )?reached"
    r"|reached max[ _](?:epochs?|steps?|iterations?|updates?)"
    r"|early stopping[:!. ]+(?:stop|triggered|train)"
    r"|stopping (?:since|because|early|after) |consecutive (?:epochs|iterations|rounds)\. stopping"
    r"|run finished\b"
    r"|(?:process|job|task|worker)s? .{0,40}?(?:exit(?:s|ed) (?:successfully|normally|with (?:exit )?code 0)"
    r"|(?:completed|finished) successfully)"
    r"|num_updates: \d+ >= max_update"
    r"|done training\b"
    r"|training (?:of|for) (?!epoch|it\b|iter|step|batch|fold).{1,40}? (?:is |was |has )(?:been )?"
    r"(?:done|finished|completed?)\b"
    r"|\A\W*finished run\b"
    r"|\A\W*shrink model to first \d+ iterations"  # CatBoost's last words
    r")",
    re.IGNORECASE,
)
_END_ALONE = re.compile(
    r"(?:all |optimi[sz]ation )?(?:done|finished|complete[d]?|bye)[.!]*\s*\Z", re.IGNORECASE
)
_SUMMARY = re.compile(
    r"wandb:\s+(?:Run summary|Synced )|\btotal img/sec\b|\bprocess group destroyed\b|\Areal\s+\d+m[\d.]+s",
    re.IGNORECASE,
)
_OF_EVALUATION = re.compile(
    r"(?<![a-z])(?:evaluator|evaluation|validation|eval|val|test)(?![a-z])", re.IGNORECASE
)
_CRASH = re.compile(
    r"Traceback \(most recent call last\)|ChildFailedError|slurmstepd: error|(?:^|\s)\w+Error: |CANCELLED AT"
    r"|Killed\b|core dumped"
)
_SAVE = re.compile(
    r"(?<![a-z])(?:saving|start(?:ed|ing)? (?:saving|an? asynchronous)|save) .{0,40}?(?:checkpoint|model|weights|state)"
    r"|(?<![a-z])saving (?:the )?checkpoint|checkpoint \S+ is about to be saved|(?<![a-z])saving model",
    re.IGNORECASE,
)
_SAVED = re.compile(
    r"(?<![a-z])(?:successfully )?(?:saved|finished saving|checkpoint .{0,60}? (?:is ready|saved)|save duration|wrote)"
    r"|(?<![a-z])saved\b|(?:saving|checkpoint) .{0,80}?success",
    re.IGNORECASE,
)
_EVALUATE = re.compile(
    r"(?<![a-z])(?:(?:start(?:ing)?|begin(?:ning)?|running) (?:the )?(?:validation|evaluation|inference|eval)"
    r"|(?:evaluating|validating|sanity checking|testing)(?![a-z])|engine run starting"
    r"|(?:eval|evaluation|validation) (?:begins?|starts?|started|beginning)(?![a-z]))",
    re.IGNORECASE,
)
_COMPILE = re.compile(
    r"(?<![a-z])compiling (?:the |each |model|with|\S+ (?:with|using) (?:torch|xla|inductor))"
    r"|torch\.compile (?:is )?(?:enabled|start)"
    r"|capturing (?:cuda )?graph|building extension module|start(?:ing)? (?:jit|xla) compil"
    r"|emitting ninja build file|\bAUTOTUNE\b",
    re.IGNORECASE,
)
_TRAIN = re.compile(
    r"(?<![a-z])(?:start|begin|resum|continu)\w* (?:the )?train|\A\W*(?:model )?training\W*\Z", re.IGNORECASE
)
_HINTS = (
    *(
        "sav",
        "wrote",
        "eval",
        "valid",
        "sanity",
        "testing",
        "inference",
        "compil",
        "train",
        "engine run",
        "loss for",
    ),
    *(
        "epochs",
        "exiting",
        "finish",
        "reached",
        "early stop",
        "done",
        "complete",
        "bye",
        "num_updates",
    ),
    *(
        "summary",
        "shrink",
        "success",
        "synced",
        "img/sec",
        "destroyed",
        "graph",
        "extension",
        "ninja",
        "autotune",
        "exit",
        "real",
        "stopping",
        "traceback",
        "error",
    ),
    *("cancelled", "killed", "core dumped", "total", "max", "number of", "steps"),
)


def interesting(text: str) -> bool:
    """Whether any of the phrases may be in the text: one quick look for the many records that have none."""
    lowered = text.lower()
    return any(hint in lowered for hint in _HINTS)


def said(text: str) -> Phase | None:
    """The phase that a text announces; FINISHED where it says that training is over."""
    if _END.search(text) or _SUMMARY.search(text) or _END_ALONE.fullmatch(text.strip()):
        found = _END.search(text)
        if found is None or _OF_EVALUATION.search(text[: found.start()]) is None:
            return Phase.FINISHED
    if _EVALUATE.search(text):
        return Phase.EVALUATING
    if _SAVE.search(text) and not _SAVED.search(text):
        return Phase.CHECKPOINTING
    if _COMPILE.search(text):
        return Phase.COMPILING
    if _TRAIN.search(text):
        return Phase.TRAINING
    return None


def saved(text: str) -> bool:
    """Whether a text says that a checkpoint is written."""
    return _SAVED.search(text) is not None


def crashed(text: str) -> bool:
    """Whether a text tells of the end of a process rather than of training."""
    return _CRASH.search(text) is not None
