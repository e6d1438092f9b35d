"""Strict YAML into typed, frozen structs: an unknown key is refused with its path and the nearest right name.

Used for the configuration files of both programs and for the web configuration.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

T = TypeVar("T")

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdwy]))+\Z")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdwy])")
_SIZES = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGTP", start=1):
    _SIZES |= {_letter: 1000**_power, f"{_letter}B": 1000**_power, f"{_letter}iB": 1024**_power}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?i?B?)\Z")


class ConfigError(Exception):
    """A configuration that cannot be used; the text names file, place and remedy."""


class Duration(float):
    """Seconds; written as in Prometheus: `15s`, `1m30s`, `2h`, or a plain number of seconds."""


class Size(int):
    """Bytes; written `500MB`, `20GiB`, or a plain number of bytes."""


_LARGEST: dict[type, float] = {Duration: 100 * _UNITS["y"], Size: 2.0**63}


def parse_duration(text: str) -> Duration:
    """Read `1m30s`; raises ValueError with what was expected."""
    if not _DURATION.match(text):
        raise ValueError(f"{text!r} is no duration: write it like 30s, 5m or 1h30m")
    return Duration(sum(float(number) * _UNITS[unit] for number, unit in _DURATION_PART.findall(text)))


def parse_size(text: str) -> Size:
    """Read `20GiB`; raises ValueError with what was expected."""
    match = _SIZE.match(text)
    if match is None or match[2] not in _SIZES:
        raise ValueError(f"{text!r} is no size: write it like 500MB or 20GiB")
    return Size(float(match[1]) * _SIZES[match[2]])


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice: YAML's own loader would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is given twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _decode(wanted: type, value: Any) -> Any:
    parse: dict[type, Callable[[str], Any]] = {Duration: parse_duration, Size: parse_size}
    if wanted not in parse:
        raise NotImplementedError(wanted)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"expected a {wanted.__name__.lower()}, got {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no {wanted.__name__.lower()}: a finite number is expected")
    read = parse[wanted](value) if isinstance(value, str) else wanted(value)
    if read < 0:
        raise ValueError(f"{value} is negative")
    if read > _LARGEST[wanted]:
        raise ValueError(f"{value} is too large to be meant")
    return read


def load(path: Path, wanted: type[T]) -> T:
    """Read a YAML file into `wanted`. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return parse(text, wanted, str(path))


def parse(text: str, wanted: type[T], where: str) -> T:
    """Read YAML text into `wanted`; an empty text is an empty mapping. Raises ConfigError."""
    try:
        data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"{where}: not YAML: {problem}") from error
    except RecursionError as error:
        raise ConfigError(f"{where}: nested too deeply to be a configuration") from error
    try:
        return msgspec.convert({} if data is None else data, wanted, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_explain(str(error), wanted)}") from error


def _explain(message: str, wanted: type) -> str:
    """msgspec's sentence; where a key is unknown, with the right name or place, or all that could be there."""
    unknown = re.search(r"unknown field `([^`]*)`(?: - at `\$([^`]*)`)?", message)
    if unknown is None:
        return message
    name, here = unknown[1], (unknown[2] or "").removeprefix(".")
    places = dict.fromkeys(_keys(wanted))
    beside = [key for place, key in places if place == re.sub(r"\[\d+\]", "[]", here)]
    near = difflib.get_close_matches(name, beside, n=1)
    elsewhere = difflib.get_close_matches(name, [key for _, key in places], n=1)
    if near and elsewhere != [name]:
        return f"{message}; did you mean `{near[0]}`?"
    if elsewhere:
        meant = [f"`{place}.{key}`".replace("`.", "`") for place, key in places if key == elsewhere[0]]
        return f"{message}; did you mean {' or '.join(meant)}?"
    return f"{message}; there are {', '.join(f'`{key}`' for key in beside)}"


def _keys(wanted: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every key of a struct type and of those inside it: where it stands (`logs[]`, at the top ``) and its name."""
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        for one in msgspec.structs.fields(wanted):
            yield path, one.encode_name
            yield from _keys(one.type, f"{path}.{one.encode_name}".removeprefix("."))
    else:
        many = "[]" if getattr(wanted, "__origin__", None) is tuple else ""
        for inner in getattr(wanted, "__args__", ()):
            yield from _keys(inner, path + many)
