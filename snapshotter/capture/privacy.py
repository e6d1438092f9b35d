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
# Short words count only as a word of their own: `bypass`, `--compat` and `multisig` are none.
_SECRET_NAME = re.compile(
    r"(?:(?i:passwords?|passwd|passphrase|secrets?|token|credentials?|api[-_]?keys?"
    r"|(?:access|secret|private|account)[-_]?keys?(?:[-_]?id)?|(?:access|auth|bearer|hf|hub)[-_]?tokens)"
    r"|(?:^|[^A-Za-z0-9]|(?<=[a-z0-9])(?=[A-Z]))(?i:key|auth|pass|pwd|pw|pat|creds?|bearer|cookie|dsn|sas|sig|signature))"
    r"[\])]?\Z"
)
# Options whose last word is `key`, `token` or `auth` but which never hold a secret.
_HARMLESS_NAME = re.compile(
    r"(?:^|[-_.])(?:pad|eos|bos|unk|mask|sep|cls|image|text|label|input|target|data|column|sort|group|cache|map)"
    r"[-_.]?(?:key|token)\Z",
    re.IGNORECASE,
)
# Said without dashes, as in `aws configure set aws_secret_access_key …`.
_SECRET_WORD = re.compile(r"(?i:[\w.]*(?:secret_access_key|session_token|api_key|access_token|auth_token))\Z")
# A password may hold `/` and `@`, but what follows the host's colon is a port where it is a number.
_ADDRESS = re.compile(
    r"(?P<scheme>\b[a-zA-Z][a-zA-Z0-9+.-]{0,20}://)"
    r"(?:[^/@\s:]*:(?!\d+(?:[/?#]|\Z))(?:(?!://)\S)*|[^/\s]*)@"
)
_BARE_ADDRESS = re.compile(r"(?<![\w/.:-])(?P<user>[\w.+-]+):(?!\d+@)[^\s@/]+@(?!sha256)(?=[\w(\[])")
_QUERY = re.compile(r"(?P<name>[?&;][^=&;\s]+)=(?P<value>[^&;\s\"']*)")
_TOKEN = re.compile(
    r"\b(?:"
    r"(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{16,}"
    r"|sk-[\w-]{16,}|(?:sk|rk|pk)_(?:live|test)_\w{10,}|xox[abprs]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}|ya29\.[\w-]{16,}"
    r"|nvapi-[\w-]{16,}|dckr_pat_[\w-]{16,}|npm_[A-Za-z0-9]{20,}|pypi-[\w-]{16,}|gsk_[A-Za-z0-9]{16,}|r8_[A-Za-z0-9]{16,}"
    r"|wandb_v\d_\w{16,}|dapi[0-9a-f]{32}|SG\.[\w-]{16,}\.[\w-]{16,}|(?<=hooks\.slack\.com/services/)[\w/]+"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"  # a JSON web token
    r")"
)
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL)
_HEADER = re.compile(
    r"(?P<name>\b(?:Authorization|Cookie|X-[\w-]{0,60}(?:Key|Token))\s*:\s*).*", re.IGNORECASE
)
_BEARER = re.compile(r"\b(?P<scheme>Bearer|Basic)\s+\S+")
_ASSIGNMENT = re.compile(r"(?P<name>-{0,2}[A-Za-z_+][\w.+-]*)=(?P<value>.*)\Z", re.DOTALL)
# A user with the password after a colon, as `curl` takes it.
_USER_OPTIONS = ("-u", "-U", "--user", "--proxy-user")
_USER = re.compile(r"(?P<user>[\"']?[^\s:/\"']+:)(?!\d+\Z)\S+")
_INNER_USER = re.compile(
    rf"(?P<option>(?<!\S)(?:{'|'.join(_USER_OPTIONS)})[\s=]+)(?P<user>[\"']?[^\s:/\"']+:)(?!\d+(?:\s|\Z))\S+"
)
# Assignments, members and options at any place of a word: the argument of `bash -c`, JSON or YAML given as a
# word, `--export=ALL,HF_TOKEN=…`. Only the name is matched here: its value may be another of them.
_INNER_NAME = re.compile(
    r"(?P<name>(?<![\w./-])(?P<quote>[\"']?)-{0,2}[A-Za-z_][\w.\[\]-]{0,200}(?P=quote))(?P<mark>=|\s*:\s*|\s+(?!--))"
)
_QUOTED = r"\"(?:\\.|[^\"\\])*\"?|'(?:\\.|[^'\\])*'?"
_VALUES = {
    "=": re.compile(rf"(?:{_QUOTED}|(?!,[\w.-]+=)[^\s;&|\"'])+", re.DOTALL),
    ":": re.compile(rf"{_QUOTED}|[^\s,;}}\]]+", re.DOTALL),
    "": re.compile(rf"(?:{_QUOTED}|[^\s;&|\"'])+", re.DOTALL),
}

_ALLOWED = re.compile(
    r"RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_RANK|ROLE_NAME|ROLE_WORLD_SIZE"
    r"|NODE_RANK|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_(?:RUN_ID|RESTART_COUNT|MAX_RESTARTS|USE_AGENT_STORE)"
    r"|(?:TORCH_)?NCCL_[A-Z0-9_]+|GLOO_[A-Z_]+|UCX_[A-Z0-9_]+|FI_PROVIDER"
    r"|CUDA_(?:VISIBLE_DEVICES|LAUNCH_BLOCKING|DEVICE_MAX_CONNECTIONS|DEVICE_ORDER)|(?:ROCR|HIP)_VISIBLE_DEVICES"
    r"|NVIDIA_VISIBLE_DEVICES|PYTORCH_(?:CUDA_)?ALLOC_CONF|TORCH_(?:DISTRIBUTED_DEBUG|CPP_LOG_LEVEL|SHOW_CPP_STACKTRACES)"
    r"|(?:TENSOR|PIPELINE)_(?:MODEL_)?PARALLEL_SIZE|[TP]P_SIZE"
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
    secret_follows = user_follows = False
    room = _LONGEST
    for whole in words:
        if room <= 0:
            masked.append("…")
            break
        word = whole[:_LONGEST_WORD]
        room -= len(word)
        if secret_follows and not word.startswith("--"):
            masked.append(MASK)
            secret_follows = user_follows = False
            continue
        named = _USER.match(word) if user_follows else None
        masked.append(mask_word(word) if named is None else f"{named['user']}{MASK}")
        option = word.startswith("-") and "=" not in word
        secret_follows = (option and _names_secret(word)) or _SECRET_WORD.match(word) is not None
        user_follows = word in _USER_OPTIONS
    return " ".join(masked)


def mask_word(word: str) -> str:
    """One word of a command line, one value, or one line of text, with the secrets in it masked."""
    assignment = _ASSIGNMENT.match(word)
    if assignment is not None and _names_secret(assignment["name"]):
        return f"{assignment['name']}={MASK}"
    word = _PRIVATE_KEY.sub(MASK, word)
    word = _ADDRESS.sub(lambda match: f"{match['scheme']}{MASK}@", word)
    word = _BARE_ADDRESS.sub(lambda match: f"{match['user']}:{MASK}@", word)
    word = _QUERY.sub(_mask_named, word)
    word = _HEADER.sub(lambda match: f"{match['name']}{MASK}", word)
    word = _BEARER.sub(lambda match: f"{match['scheme']} {MASK}", word)
    word = _INNER_USER.sub(lambda match: f"{match['option']}{match['user']}{MASK}", word)
    return _TOKEN.sub(MASK, _mask_inner(word))


def _mask_inner(word: str) -> str:
    """What is assigned to a secret's name anywhere in the word, masked."""
    pieces: list[str] = []
    done = place = 0
    while (match := _INNER_NAME.search(word, place)) is not None:
        place = match.end()
        mark = match["mark"].strip()
        option = match["name"].startswith("-")
        if not _names_secret(match["name"]) or not (mark or option):
            if not mark:  # a word like any other; the next may be a name
                place = match.end("name") + 1
            continue
        value = _VALUES[mark].match(word, place)
        if value is not None:
            pieces += (word[done:place], MASK)
            done = place = value.end()
    return "".join(pieces) + word[done:]


def _names_secret(name: str) -> bool:
    bare = name.strip("-+?&;\"'")
    return bool(_SECRET_NAME.search(bare)) and not _HARMLESS_NAME.search(bare)


def _mask_named(match: re.Match[str]) -> str:
    return f"{match['name']}={MASK}" if _names_secret(match["name"]) else match[0]
