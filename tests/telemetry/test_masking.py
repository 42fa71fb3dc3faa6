"""Secrets are found by their names and shapes, and training words are not taken for them."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell._core.masking import mask, mask_argv

SECRET = "correct-horse"


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "DB_PASSWORD",
        "dbPassword",
        "passwd",
        "db_pass",
        "client_secret",
        "token",
        "hf_token",
        "HF_TOKEN",
        "auth-token",
        "githubToken2",
        "api_key",
        "apikey",
        "WANDB_API_KEY",
        "openaiApiKey",
        "aws_access_key_id",
        "AWS_SECRET_ACCESS_KEY",
        "private_key",
        "credentials",
        "auth",
        "Authorization",
        "session_key",
        "cookie",
        "sentry_dsn",
        "connection_string",
        "logger.wandb.api_key",
    ],
)
def test_a_value_under_a_secret_name_is_masked(name: str) -> None:
    """However the name is written, the value is replaced, including everything below it."""
    assert mask({name: SECRET}) == {name: "***"}
    assert mask([{"a": {name: {"user": "me", "value": [SECRET]}}}]) == [{"a": {name: "***"}}]


@pytest.mark.parametrize(
    "name",
    [
        "tokens",
        "max_tokens",
        "num_tokens",
        "tokens_per_second",
        "tokenizer",
        "token_type_ids",
        "pad_token",
        "eos_token",
        "pad_token_id",
        "loss_per_token",
        "author",
        "authors",
        "authority",
        "key",
        "keys",
        "monkey",
        "forward_pass",
        "passes",
        "secretary",
        "num_key_value_heads",
        "private",
        "session",
        "compass",
    ],
)
def test_a_name_of_training_is_not_taken_for_a_secret(name: str) -> None:
    """Words that merely contain or resemble a secret one are left alone."""
    assert mask({name: "value"}) == {name: "value"}


def test_nothing_and_switches_stay_readable_under_a_secret_name() -> None:
    """Whether a password is set or a token is used is useful information and not secret."""
    harmless = {"password": "", "token": None, "use_auth_token": True, "auth": False}
    assert mask(harmless) == harmless
    assert mask({"password": 12345}) == {"password": "***"}


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("https://me:pw@example.org/x", "https://me:***@example.org/x"),
        ("redis://:p@ss@cache:6379/0", "redis://:***@cache:6379/0"),
        ("see postgres://u:p@h/db and http://h:80/", "see postgres://u:***@h/db and http://h:80/"),
        ("https://example.org/?a=1&api_key=x&b=2", "https://example.org/?a=1&api_key=***&b=2"),
        ("host=db password='a b' user=me", "host=db password=*** user=me"),
        ("Server=db;Password=x;User=me", "Server=db;Password=***;User=me"),
        ('{"token": "a\\"b", "lr": "1"}', '{"token": "***", "lr": "1"}'),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic ***"),
        ("Bearer abcdefgh12345678", "Bearer ***"),
        ("hf_" + "aB3" * 12, "***"),
        ("use ghp_" + "aB3" * 12 + " here", "use *** here"),
        ("sk-proj-" + "aB3" * 12, "***"),
        ("AKIA" + "A1B2C3D4E5F6G7H8", "***"),
        ("xoxb-1234567890-abcdef", "***"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nend",
            "***\nend",
        ),
    ],
)
def test_a_secret_inside_a_text_is_masked(text: str, masked: str) -> None:
    """Passwords in addresses and keys of well-known shapes are found anywhere."""
    assert mask({"note": [text]}) == {"note": [masked]}


@pytest.mark.parametrize(
    "text",
    [
        "hf_model",
        "a basic training of risk-aware-policies-for-sk-learn-pipelines",
        "sk-learn-random-forest-classifier-large",
        "0123456789abcdef0123456789abcdef01234567",
        "mailto:me@example.org",
        "s3://bucket/key@version",
        "lr=0.1 tokenizer=gpt2",
    ],
)
def test_an_ordinary_text_is_left_alone(text: str) -> None:
    """Names, commits and paths that look a little like keys stay."""
    assert mask({"note": text}) == {"note": text}


def test_a_bare_hexadecimal_key_is_masked_only_where_its_name_says_so() -> None:
    """Forty hexadecimal digits are a commit, unless they go under the name of a key."""
    digits = "0123456789abcdef0123456789abcdef01234567"
    assert mask({"commit": digits, "wandb": digits}) == {"commit": digits, "wandb": "***"}


def test_what_refers_to_itself_comes_to_an_end() -> None:
    """A configuration that contains itself is cut off, not followed for ever."""
    loop: dict[str, Any] = {"lr": 1}
    loop["self"] = loop
    assert mask(loop)["self"]["self"]["lr"] == 1


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_masking_never_fails_and_keeps_the_shape(value: Any) -> None:
    """Any nested value keeps its keys and lengths, and masking it again changes nothing."""
    masked = mask(value)
    assert mask(masked) == masked
    if isinstance(value, dict):
        assert masked.keys() == value.keys()
    if isinstance(value, list):
        assert len(masked) == len(value)


@pytest.mark.parametrize("text", ["a" * 200_000, "://" * 60_000, "sk-" * 60_000, "'a':" * 50_000])
def test_a_long_text_is_masked_in_reasonable_time(text: str) -> None:
    """No text makes the search take more than a moment."""
    begin = time.process_time()
    mask(text)
    assert time.process_time() - begin < 5


def test_a_command_line_is_masked_in_each_spelling() -> None:
    """Options with and without an equals sign, and overrides, lose their secrets and nothing else."""
    argv = [
        "train.py",
        f"--api-key={SECRET}",
        "--api-key",
        SECRET,
        "--hf_token",
        f"-{SECRET}",
        f"api_key={SECRET}",
        f"+logger.wandb.api_key={SECRET}",
        "--url",
        f"https://me:{SECRET}@example.org",
        "--max-tokens",
        "100",
        "--tokenizer=gpt2",
        "--use-auth",
        "--lr",
        "0.1",
    ]
    assert mask_argv(argv) == [
        "train.py",
        "--api-key=***",
        "--api-key",
        "***",
        "--hf_token",
        "***",
        "api_key=***",
        "+logger.wandb.api_key=***",
        "--url",
        "https://me:***@example.org",
        "--max-tokens",
        "100",
        "--tokenizer=gpt2",
        "--use-auth",
        "--lr",
        "0.1",
    ]
