"""Masking of secrets before anything is written: by their name and by their shape.

Names are compared word by word: `hf_token` and `apiKey` are secret while `max_tokens`,
`pad_token`, `tokenizer` and `author` are not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

MASK = "***"

_DEEPEST = 64

_SECRET_WORDS = """
    password passwords passwd passphrase pwd secret secrets apikey apikeys accesskey secretkey
    privatekey authtoken accesstoken credential credentials creds auth oauth authorization
    authentication bearer cookie cookies jwt dsn connectionstring
"""
_SECRET_PAIRS = """
    api-key api-keys access-key private-key secret-key session-key signing-key ssh-key
    encryption-key account-key license-key service-key master-key shared-key session-id
    connection-string conn-str api-tokens access-tokens refresh-tokens webhook-url
    db-pass user-pass smtp-pass ftp-pass mail-pass proxy-pass admin-pass root-pass
"""
# A name that ends with `token` is secret, unless the word before it refers to a token of a text.
_TEXT_TOKENS = """
    pad padding eos bos mask masked unk unknown cls sep additional special image audio video speech
    start end stop begin beginning next first last prev per max min num n each every class text
    word subword think thinking decoder prompt response fim prefix suffix middle null blank empty
    target source input output boundary newline space distillation register
"""
_SECRETS = frozenset(_SECRET_WORDS.split()) | frozenset(_SECRET_PAIRS.split())
_TEXT = frozenset(_TEXT_TOKENS.split())

# Patterns are compiled when first used, not at import.
_SHAPES = r"""(?xs)
      (?<![A-Za-z0-9])(?:
        hf_[A-Za-z0-9]{20,}
      | gh[pousr]_[A-Za-z0-9]{20,}
      | github_pat_[A-Za-z0-9_]{20,}
      | glpat-[A-Za-z0-9_-]{20,}
      | sk-(?=[\w-]{0,200}[0-9])(?=[\w-]{0,200}[A-Z])[\w-]{20,}
      | sk-[a-z0-9]{32,}
      | (?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Z0-9])
      | xox[a-z]-[A-Za-z0-9-]{10,}
      | AIza[\w-]{35}
      | nvapi-[\w-]{20,}
      | dapi[0-9a-f]{32}
      | eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*
      )
      | (?<=hooks\.slack\.com/services/)[A-Za-z0-9/]+
      | -----BEGIN[ ][A-Z ]{0,40}PRIVATE[ ]KEY-----.*?(?:-----END[ ][A-Z ]{0,40}KEY-----|\Z)
"""
_URL_PASSWORD = r"""(://[^\s/:@"']*:)[^\s/"']+@"""
_HEADER = r"(?i)(\bauthorization\s*[:=]\s*(?:[a-z]+\s+)?|\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}"
# `key=value` as in queries and connection strings, and `"key": "value"` in a piece of JSON.
_ASSIGNMENT = r"""(?m)(?:^|(?<=[?&;\s]))([\w.-]{1,80})=("[^"]*"|'[^']*'|[^&;\s#]+)"""
_QUOTED_PAIR = r"""(?s)((["'])([\w.-]{1,80})\2\s*:\s*)(["'])(?:\\.|(?!\4)[^\\])*\4"""
# A literal in a line of source code: `login(token="…")`, `API_KEY = '…'`.
_LITERAL = r"""([A-Za-z_][\w.]{0,80})(\s*[=:]\s*[A-Za-z]{0,2})(["'])(?:\\.|(?!\3)[^\\])*(?:\3|$)"""
_WANDB_KEY = r"(?:local-)?[0-9a-f]{40}"


def mask(value: Any) -> Any:
    """Return the value with all secrets replaced by "***", at any depth of dicts and lists.

    Dicts, lists and tuples are copied into new dicts and lists; other values are returned unchanged.
    """
    return _mask(value, (), 0)


def mask_argv(argv: Sequence[str]) -> list[str]:
    """Return the command line with secret values replaced by "***".

    Recognises `--api-key=X`, `--api-key X`, `logger.api_key=X`, and values that look like a secret.
    """
    masked: list[str] = []
    expects_secret = False
    for argument in argv:
        if expects_secret and not argument.startswith("--"):
            masked.append(MASK)
            expects_secret = False
            continue
        name, equals, value = argument.partition("=")
        secret = _looks_like_name(name) and is_secret_name(name)
        expects_secret = secret and not equals and name.startswith("-")
        if secret and equals:
            masked.append(f"{name}={_mask_secret(value)}")
        elif equals and _looks_like_name(name):
            masked.append(f"{name}={_mask_text(value, _split_words(name))}")
        else:
            masked.append(_mask_text(argument, ()))
    return masked


def mask_source(line: str) -> str:
    """Return a line of source code with the string literals of secret names replaced by "***"."""
    return re.sub(_LITERAL, _mask_literal, _mask_text(line, ()))


def is_secret_name(name: str) -> bool:
    """Return whether values with this name are secret."""
    return _are_secret(_split_words(name))


def _are_secret(words: tuple[str, ...]) -> bool:
    pairs = (f"{first}-{second}" for first, second in pairwise(words))
    if not _SECRETS.isdisjoint(words) or not _SECRETS.isdisjoint(pairs):
        return True
    return words[-1:] == ("token",) and _TEXT.isdisjoint(words[-2:-1])


def _split_words(name: str) -> tuple[str, ...]:
    """Return (wandb, api, key) for `wandbApiKey`, `WANDB_API_KEY` and `wandb.api-key2`."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name[:200])
    return tuple(re.findall(r"[a-z]+", spaced.lower()))


def _mask(value: Any, words: tuple[str, ...], depth: int) -> Any:
    if depth > _DEEPEST:
        return MASK
    if isinstance(value, str):
        return _mask_text(value, words)
    if isinstance(value, Mapping):
        return {key: _mask_item(key, item, depth) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_mask(item, words, depth + 1) for item in value]
    return value


def _mask_item(key: Any, value: Any, depth: int) -> Any:
    words = _split_words(str(key))
    return _mask_secret(value) if _are_secret(words) else _mask(value, words, depth + 1)


def _mask_secret(value: Any) -> Any:
    # None, flags and fractions are never secrets, and useful to see.
    is_harmless = value is None or isinstance(value, (bool, float))
    return value if is_harmless or (isinstance(value, str) and not value) else MASK


def _mask_text(text: str, words: tuple[str, ...]) -> str:
    if ("wandb" in words or "key" in words) and re.fullmatch(_WANDB_KEY, text):
        return MASK
    text = re.sub(_SHAPES, MASK, text)
    text = re.sub(_URL_PASSWORD, rf"\1{MASK}@", text)
    text = re.sub(_HEADER, rf"\1{MASK}", text)
    text = re.sub(_ASSIGNMENT, _mask_assignment, text)
    return re.sub(_QUOTED_PAIR, _mask_quoted_pair, text)


def _mask_assignment(match: re.Match[str]) -> str:
    return f"{match[1]}={MASK}" if is_secret_name(match[1]) else match[0]


def _mask_quoted_pair(match: re.Match[str]) -> str:
    before, _, name, quote = match.groups()
    return f"{before}{quote}{MASK}{quote}" if is_secret_name(name) else match[0]


def _mask_literal(match: re.Match[str]) -> str:
    name, between, quote = match.groups()
    return f"{name}{between}{quote}{MASK}{quote}" if is_secret_name(name) else match[0]


def _looks_like_name(text: str) -> bool:
    return re.fullmatch(r"[-+~/]{0,3}[A-Za-z_][\w.@/-]{0,200}", text) is not None


def without_password(url: str) -> str:
    """Return a URL without user, password, query and fragment, so that it can be shown."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if "@" not in parts.netloc and not parts.query and not parts.fragment:
        return url
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
