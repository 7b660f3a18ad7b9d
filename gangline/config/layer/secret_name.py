"""PURE: which names stand for secrets, and which parts of a text are secrets whatever its name is.

Owns the rule only; secret.py applies it to the values of a configuration. A name is cut into words at signs and at
changes of case. The rule finds words that stand for secrets alone, and inside of words that are written as one, as in
PGPASSWORD. Pairs that name something else, as `eos_token` or `sort_key`, are left out before.
"""

from __future__ import annotations

import re
from functools import lru_cache

MASK = "******"
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Finds in any letter case what every secret name has; most names have none of it.
_HINT = re.compile(r"pass|pwd|pw|pat|secret|token|key|auth|cred|dsn|jwt|bearer|conn|webhook", re.IGNORECASE)

# In the pattern's texts, each word of a name stands between two underscores, in lower case.
_INNOCENT = re.compile(
    r"_(?:bos|eos|pad|unk|sep|cls|mask|special|stop|start|end|image|prompt|begin|extra)_token(?=_)"
    r"|_token_(?:type|limit|count|length|budget|dropout|dim|size|ids?|index|merging|embeddings?|per)(?=_)"
    r"|_(?:public|primary|foreign|sort|partition|group|cache|map|dict|lookup|index|column|row|label|metric|data|image"
    r"|text|audio|video|caption|prompt|target|input|output|feature|features|state|config|join|hot|batch|sample|answer"
    r"|question|dataset|record|monitor|query|num)_key(?=_)"
    r"|_(?:first|second|third|last|single|multi|one|two|forward|backward|low|high|band|by|per|num|train|eval|warmup)"
    r"_pass(?=_)"
    r"|_(?:by|com|encom|sur|tres|over|under|low|high|band|all|multi|single|one|two|first|last|ask|im)pass(?=_)"
    r"|_secret(?:ar|ion)\w*?(?=_)"
    r"|_auth_sock(?=_)"
)
_SECRET = re.compile(
    # Inside of words, as in PGPASSWORD, CLIENTSECRET or HFTOKEN.
    r"password|passwd|passphrase|passcode|credential|secret|token_|apikey|accesskey|privatekey|authkey|connstr"
    r"|[a-z]pass_"
    # Whole words.
    r"|_o?auth_|_creds?_|_jwt_|_bearer_"
    # Whole words at the end, as in DB_PASS, GITHUB_PAT or OPENAI_KEY. PWD alone is the working directory.
    r"|_(?:pass|pw|pat|dsn)_$|[a-z]_(?:pwd|key)_$"
    # Pairs.
    r"|_(?:api|access|private|account|secret|encryption|signing|master|shared)_keys?_|_(?:api|auth|access)_tokens_"
    r"|_conn(?:ection)?_str(?:ing)?_|_webhook_(?:$|ur[li]_)"
)

# The part of a URL before its host: of any scheme with a password, and of http without one, which may be a token.
_USER = re.compile(r"://([^\s/?#]*)@")
_PARAMETER = re.compile(r"([?&;])([A-Za-z][\w.-]{0,63})=([^&;\s#]+)")
_SIGNATURES = frozenset({"sig", "signature", "x-amz-signature", "x-goog-signature"})


@lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Whether a key, or an environment variable, of this name holds a secret. `tokenizer` and `max_tokens` do not."""
    if not _HINT.search(name):
        return False
    words = "_".join(["", *_WORD.findall(name), ""]).lower()
    return _SECRET.search(_INNOCENT.sub("", words)) is not None


def mask_inside(text: str) -> str:
    """Returns the text with MASK for the user of each URL, and for parameters that are secrets; the same text if it has
    none."""
    if "://" in text and "@" in text:
        text = _USER.sub(_mask_user, text)
    if "=" in text and ("?" in text or ";" in text or "&" in text):
        text = _PARAMETER.sub(_mask_parameter, text)
    return text


def _mask_user(match: re.Match[str]) -> str:
    user, before = match.group(1), match.string[max(0, match.start() - 5) : match.start()]
    is_token = user not in ("", "git") and before.endswith(("http", "https"))
    return f"://{MASK}@" if ":" in user or is_token else match.group()


def _mask_parameter(match: re.Match[str]) -> str:
    sign, name, _ = match.groups()
    return f"{sign}{name}={MASK}" if name.lower() in _SIGNATURES or is_secret(name) else match.group()
