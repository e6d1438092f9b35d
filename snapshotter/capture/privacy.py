"""What leaves the node of a command line and an environment: no secret, nothing that was not asked for.

Environment variables are taken by an allow-list. A command line is kept whole but for the values of what is
named like a secret, credentials inside addresses, and words shaped like a well-known kind of token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

MASK = "***"
_LONGEST = 16384  # characters of a command line
_LONGEST_WORD = 4096

# A name that ends in one of these words holds a secret; `--api-key`, `DB_PASSWORD`, `hf.token`, `authToken`.
_SECRET_NAME = re.compile(
    r"(?:^|[-_.]|(?<=[a-z0-9])(?=[A-Z]))"
    r"(?:api[-_]?key|access[-_]?key(?:[-_]?id)?|secret[-_]?key|private[-_]?key|account[-_]?key|key|auth"
    r"|passwd|password|passphrase|pass|pwd|secret|secrets|token|credential|credentials|bearer|cookie|dsn|sas)"
    r"\Z",
    re.IGNORECASE,
)
# Options whose last word is `key`, `token` or `auth` but which never hold a secret.
_HARMLESS_NAME = re.compile(
    r"(?:^|[-_.])(?:pad|eos|bos|unk|mask|sep|cls|image|text|label|input|target|data|column|sort|group|cache|map)"
    r"[-_.]?(?:key|token)\Z",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*://)(?P<user>[^/@\s:]*):?(?P<password>[^/@\s]*)@")
_QUERY = re.compile(r"(?P<name>[?&;][^=&;\s]+)=(?P<value>[^&;\s]*)")
_TOKEN = re.compile(
    r"\b(?:"
    r"(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{16,}"
    r"|sk-[\w-]{16,}|xox[abprs]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"  # a JSON web token
    r")"
)
_HEADER = re.compile(r"(?P<name>\b(?:Authorization|Cookie|X-[\w-]*(?:Key|Token))\s*:\s*).*", re.IGNORECASE)
_BEARER = re.compile(r"\b(?P<scheme>Bearer|Basic)\s+\S+")
_ASSIGNMENT = re.compile(r"(?P<name>-{0,2}[A-Za-z_+][\w.+-]*)=(?P<value>.*)\Z", re.DOTALL)
# Assignments and options inside a longer word, such as the argument of `bash -c`.
_VALUE = r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s;&|]+)"
_INNER_ASSIGNMENT = re.compile(r"(?P<name>(?<![\w./-])-{0,2}[A-Za-z_][\w.-]*)(?P<mark>=)" + _VALUE)
_INNER_OPTION = re.compile(r"(?P<name>(?<![\w./-])--?[A-Za-z_][\w.-]*)(?P<mark>\s+)(?!--)" + _VALUE)
# Members of JSON or YAML given as a word: `{"api_key": "…"}`.
_INNER_MEMBER = re.compile(
    r"(?P<name>(?P<quote>[\"']?)[A-Za-z_][\w.-]*(?P=quote))(?P<mark>\s*:\s*)"
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s,;}\]]+)"
)

_ALLOWED = re.compile(
    r"RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_RANK|ROLE_NAME|ROLE_WORLD_SIZE"
    r"|NODE_RANK|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_(?:RUN_ID|RESTART_COUNT|MAX_RESTARTS|USE_AGENT_STORE)"
    r"|(?:TORCH_)?NCCL_[A-Z0-9_]+|GLOO_[A-Z_]+|UCX_[A-Z0-9_]+|FI_PROVIDER"
    r"|CUDA_(?:VISIBLE_DEVICES|LAUNCH_BLOCKING|DEVICE_MAX_CONNECTIONS|DEVICE_ORDER)|(?:ROCR|HIP)_VISIBLE_DEVICES"
    r"|NVIDIA_VISIBLE_DEVICES|PYTORCH_(?:CUDA_)?ALLOC_CONF|TORCH_(?:DISTRIBUTED_DEBUG|CPP_LOG_LEVEL|SHOW_CPP_STACKTRACES)"
    r"|OMP_NUM_THREADS|MKL_NUM_THREADS|PYTHONFAULTHANDLER|PYTHONUNBUFFERED"
    r"|SLURM_(?:JOB_ID|JOB_NAME|STEP_ID|PROCID|LOCALID|NODEID|NTASKS|NNODES|RESTART_COUNT|ARRAY_JOB_ID|ARRAY_TASK_ID)"
    r"|OMPI_COMM_WORLD_(?:RANK|LOCAL_RANK|SIZE|LOCAL_SIZE)|PMI_(?:RANK|SIZE)|PMIX_RANK|MV2_COMM_WORLD_(?:RANK|SIZE)"
    r"|RAY_JOB_ID|JOB_NAME|POD_NAME|POD_NAMESPACE|NODE_NAME|HOSTNAME"
)


def allowed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that explain a distributed job, and no others; secrets within their values masked."""
    return {
        name: mask_word(value)
        for name, value in sorted(environment.items())
        if _ALLOWED.fullmatch(name) and not _names_secret(name)
    }


def mask_command_line(words: Sequence[str]) -> str:
    """The command line as one text, words joined by a space, secrets replaced by `***`, bounded in length."""
    masked: list[str] = []
    secret_follows = False
    room = _LONGEST
    for whole in words:
        if room <= 0:
            masked.append("…")
            break
        word = whole[:_LONGEST_WORD]
        room -= len(word)
        if secret_follows and not word.startswith("--"):
            masked.append(MASK)
            secret_follows = False
            continue
        secret_follows = word.startswith("-") and "=" not in word and _names_secret(word)
        masked.append(mask_word(word))
    return " ".join(masked)


def mask_word(word: str) -> str:
    """One word of a command line, or one value, with the secrets in it masked."""
    assignment = _ASSIGNMENT.match(word)
    if assignment is not None and _names_secret(assignment["name"]):
        return f"{assignment['name']}={MASK}"
    word = _ADDRESS.sub(lambda match: f"{match['scheme']}{MASK}@", word)
    word = _QUERY.sub(_mask_named, word)
    word = _HEADER.sub(lambda match: f"{match['name']}{MASK}", word)
    word = _BEARER.sub(lambda match: f"{match['scheme']} {MASK}", word)
    word = _INNER_MEMBER.sub(_mask_inner, word)
    if any(mark in word for mark in " \t\n"):
        word = _INNER_ASSIGNMENT.sub(_mask_inner, word)
        word = _INNER_OPTION.sub(_mask_inner, word)
    return _TOKEN.sub(MASK, word)


def _names_secret(name: str) -> bool:
    bare = name.strip("-+?&;\"'")
    return bool(_SECRET_NAME.search(bare)) and not _HARMLESS_NAME.search(bare)


def _mask_named(match: re.Match[str]) -> str:
    return f"{match['name']}={MASK}" if _names_secret(match["name"]) else match[0]


def _mask_inner(match: re.Match[str]) -> str:
    return f"{match['name']}{match['mark']}{MASK}" if _names_secret(match["name"]) else match[0]
