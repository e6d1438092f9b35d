"""Presets: the marks by which a framework's log is recognised, and its iteration records.

Which preset a log has only names it: records are read by rules that hold for all. A preset that is pinned in the
configuration is used alone. The patterns follow the frameworks' format strings: Megatron-LM training_log,
transformers' ProgressCallback and PrinterCallback, tqdm's format_meter, and so on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from exporter.logs import patterns
from exporter.logs.reading import Reading
from exporter.logs.userpattern import aside, reading
from exporter.logs.wrappers import Record

_BAR = r"\|\s*(?P<iteration>\d+)/(?P<total>\d+) \["
_LOOKED_AT = 2000  # records in which marks are looked for


@dataclass(frozen=True, slots=True)
class Preset:
    """A framework. `pattern` has the groups iteration, total and epoch."""

    name: str
    marks: re.Pattern[str]
    pattern: re.Pattern[str]


def _preset(name: str, marks: str, pattern: str) -> Preset:
    return Preset(name, re.compile(marks), re.compile(pattern))


# A second alternative of a pattern has its groups with an underscore behind their names.
PRESETS = (
    _preset(
        "megatron-lm", r"consumed samples: +\d+ \| ", r"iteration +(?P<iteration>\d+)/ *(?P<total>\d+) \|"
    ),
    _preset(
        "gpt-neox",
        r"\| iteration +\d+/ *\d+ \| elapsed time per iteration",
        r"iteration +(?P<iteration>\d+)/ *(?P<total>\d+) \|",
    ),
    _preset(
        "nemo",
        r"\[NeMo [IWE] |Training epoch \d+, iteration \d+/",
        r"Training epoch (?P<epoch>\d+), iteration (?P<iteration>\d+)/(?P<total>\d+)"
        r"|^Epoch (?P<epoch_>\d+): .*\| *(?P<iteration_>\d+)/(?P<total_>\d+) \[",
    ),
    _preset(
        "deepspeed",
        r"\[Rank 0\] step=\d+, skipped=|\[deepspeed|DeepSpeed info: version",
        r"\bstep=(?P<iteration>\d+), skipped=|global_step=(?P<iteration_>\d+), ",
    ),
    _preset("torchtitan", r"\[titan\]|torchtitan", r"(?<!validate )\bstep: *(?P<iteration>\d+)  "),
    _preset(
        "ms-swift",
        r"\[INFO:swift\]|global_step/max_steps",
        r"'global_step/max_steps': '(?P<iteration>\d+)/(?P<total>\d+)'"
        r"|^Train: .*\| *(?P<iteration_>\d+)/(?P<total_>\d+) \[",
    ),
    _preset(
        "llama-factory",
        r'"current_steps": \d+, "total_steps"',
        r'"current_steps": (?P<iteration>\d+), "total_steps": (?P<total>\d+), "loss"',
    ),
    _preset("axolotl", r"\[axolotl\.", _BAR),
    _preset("unsloth", r"Unsloth", _BAR),
    _preset("verl", r"\(TaskRunner pid=|global_seqlen/min", r"^step:(?P<iteration>\d+) - (?!val)"),
    _preset("openrlhf", r"\(PPOTrainer|openrlhf", r"Global step (?P<iteration>\d+):"),
    _preset("torchtune", r"torchtune", r"^(?P<epoch>\d+)\|(?P<iteration>\d+)\|"),
    _preset(
        "litgpt",
        r"\| iter \d+ step \d+ \| loss train",
        r"^Epoch (?P<epoch>\d+) \| iter (?P<iteration>\d+) step",
    ),
    _preset(
        "nanotron",
        r"consumed_tokens: \S+ \| time_per_iteration_ms",
        r"iteration: (?P<iteration>\d+) / (?P<total>\d+) \|",
    ),
    _preset(
        "olmo", r"olmo(?:_core)?\.train", r"\[step=(?P<iteration>\d+)/(?P<total>\d+),epoch=(?P<epoch>\d+)"
    ),
    _preset(
        "maxtext",
        r"completed step: \d+, seconds|max_utils\.py",
        r"^\S* *completed (?:profiler \S+ )?step: (?P<iteration>\d+),",
    ),
    _preset(
        "levanter", r"Progress on:\w+ ", r"Progress on:train (?P<iteration>[\d.k]+)it/(?P<total>[\d.k]+)it"
    ),
    _preset(
        "composer",
        r"\[batch=\d+/\d+\]:",
        r"\[epoch=(?P<epoch>\d+)[^\]]*\]\[batch=(?P<iteration>\d+)/(?P<total>\d+)\]",
    ),
    _preset("detectron2", r"d2\.utils\.events|detectron2", r"\biter: (?P<iteration>\d+)  "),
    _preset(
        "mmengine",
        r"- mm\w+ - INFO -",
        r"(?:Epoch\(train\) +\[(?P<epoch>\d+)\]|Iter\(train\) +|Epoch \[(?P<epoch_>\d+)\])"
        r"\[ *(?P<iteration>\d+)/(?P<total>\d+)\]",
    ),
    _preset(
        "ultralytics",
        r"Ultralytics|YOLO\w* summary",
        r"^ +(?P<epoch>\d+)/\d+ .*?(?P<iteration>\d+)/(?P<total>\d+) [\d.]+(?:it/s|s/it)",
    ),
    _preset("yolox", r"yolox\.", r"epoch: (?P<epoch>\d+)/\d+, iter: (?P<iteration>\d+)/(?P<total>\d+)"),
    _preset(
        "timm", r"^Train: \d+ \[ *\d+/\d+ \(", r"^Train: (?P<epoch>\d+) \[ *(?P<iteration>\d+)/(?P<total>\d+)"
    ),
    _preset("fairseq", r"fairseq|train_inner", r"num_updates\"?[=:] ?\"?(?P<iteration>\d+)"),
    _preset("stable-baselines3", r"\| time/ +\|", r"\| +iterations +\| (?P<iteration>\d+)"),
    _preset("ignite", r"Engine run starting", r"Iteration\[(?P<iteration>\d+)/(?P<total>\d+)\]"),
    _preset(
        "colossalai", r"colossalai", r"^Epoch (?P<epoch>\d+): .*\| *(?P<iteration>\d+)/(?P<total>\d+) \["
    ),
    _preset(
        "flair",
        r"epoch \d+ - iter \d+/\d+ - loss",
        r"epoch (?P<epoch>\d+) - iter (?P<iteration>\d+)/(?P<total>\d+) -",
    ),
    _preset(
        "keras",
        r"\d+/\d+ (?:\[=|━).*(?:ETA|ms/step|s/step)",
        r"^ *(?P<iteration>\d+)/(?P<total>\d+) (?:\[|━)",
    ),
    _preset(
        "tensorflow-estimator", r"INFO:tensorflow:", r"INFO:tensorflow:loss = \S+, step = (?P<iteration>\d+)"
    ),
    _preset("horovod", r"Iter #\d+: \S+ img/sec", r"Iter #(?P<iteration>\d+):"),
    _preset(
        "lightning",
        r"`?Trainer\.fit`|Sanity Checking|lightning[./_]pytorch|pytorch_lightning|GPU available: ",
        r"^Epoch (?P<epoch>\d+):? .*?(?P<iteration>\d+)/(?P<total>\d+) ",
    ),
    _preset(
        "huggingface",
        r"\{'loss': |'train_runtime'|\[transformers\]|\[INFO\|trainer\.py|\*{5} Running training \*{5}",
        r"^ *\d*%?\|[^|]*\| (?P<iteration>\d+)/(?P<total>\d+) \["
        r"|\{'loss': .*?'(?:step|global_step)': (?P<iteration_>\d+)",
    ),
    _preset("nanogpt", r"^iter \d+: loss \S+, time \S+ms", r"^iter (?P<iteration>\d+): loss"),
    _preset(
        "pytorch-imagenet",
        r"^Epoch: \[\d+\]\[ *\d+/\d+\]",
        r"^Epoch: \[(?P<epoch>\d+)\]\[ *(?P<iteration>\d+)/(?P<total>\d+)\]",
    ),
    _preset("tqdm", r"\d+%\|[^|]*\| *\d+/\d+ \[", _BAR),
)
NAMES = tuple(one.name for one in PRESETS)


class Recogniser:
    """Finds out a log's framework from the first of its records that bear a mark. `pinned`: it is known."""

    def __init__(self, pinned: str | None = None) -> None:
        self._best = len(PRESETS)
        self._left = 0 if pinned else _LOOKED_AT
        self._pinned = pinned

    @property
    def name(self) -> str:
        """The preset's name, `unknown` where none fits."""
        if self._pinned is not None:
            return self._pinned
        return PRESETS[self._best].name if self._best < len(PRESETS) else "unknown"

    def see(self, text: str) -> None:
        """Take a record's text into account. The presets are in order: the more special one wins."""
        if not self._left:
            return
        self._left -= 1
        for place, preset in enumerate(PRESETS[: self._best]):
            if preset.marks.search(text):
                self._best = place
                self._left = min(self._left, _LOOKED_AT // 10)
                return


def reader(name: str) -> Callable[[Record], Reading | None]:
    """Reads records by one preset alone. Raises KeyError where there is none of that name."""
    preset = {one.name: one for one in PRESETS}[name]

    def read(record: Record) -> Reading | None:
        match = preset.pattern.search(record.text)
        if match is None:
            return aside(patterns.read(record))
        found = match.groupdict()
        return reading(
            {group: found.get(group) or found.get(f"{group}_") for group in ("iteration", "total", "epoch")}
        )

    return read
