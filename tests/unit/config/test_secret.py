"""The rule by which values are secrets, and that a masked configuration gets back its own secrets alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.config.layer.secret import mask_secrets, restore_secrets
from gangline.config.layer.secret_name import MASK, is_secret, mask_inside
from gangline.errors import GanglineError

CONFIG: dict[str, Any] = {
    "name": "token",
    "data": {"api_key": "k-1", "url": "s3://b", "db": {"password": "p-2", "port": 5432}, "auth": [{"user": "u-3"}, ""]},
    "environment": {"environment_variables": {"cpu": ["HF_TOKEN=t-4=x", "SIZE=3"], "cuda": ["HF_TOKEN=t-5"]}},
    "hyperparameters": {"token": "shown"},
    "checkpoint_storage": {"secret_key": "s-6"},
}
SECRETS = ("k-1", "p-2", "u-3", "t-4=x", "t-5", "s-6")


SECRET_NAMES = """
    password DB_PASSWORD PGPASSWORD MYSQL_ROOT_PASSWORD MYSQL_PWD DB_PWD DB_PASS FTP_PASS SSHPASS DBPASS
    userPassword apiKey api-key APIKEY OPENAI_KEY OPENAI_API_KEY WANDB_API_KEY KAGGLE_KEY COMET_API_KEY S3_KEY
    SSH_PRIVATE_KEY AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID AWS_SESSION_TOKEN ENCRYPTION_KEY STORAGE_ACCOUNT_KEY
    API_KEYS HF_TOKEN HFTOKEN GITHUB_TOKEN NEPTUNE_API_TOKEN GITHUB_PAT GH_PAT GITLAB_PAT registry_auth
    REDISCLI_AUTH NPM_AUTH CLIENTSECRET CLIENT_SECRET DJANGO_SECRET SECRETKEY OAUTH_REFRESH GOOGLE_CREDENTIALS
    DB_CREDS SMTP_PW KEY_PASSPHRASE SENTRY_DSN connection_string AZURE_STORAGE_CONNECTION_STRING DB_CONN_STR
    SLACK_WEBHOOK_URL DISCORD_WEBHOOK SESSION_JWT credential secret_key access_key API_BEARER
"""
INNOCENT_NAMES = """
    tokenizer TOKENIZERS_PARALLELISM max_tokens num_tokens tokens eos_token pad_token token_type token_limit
    max_token_length key monkey MONKEY KEYBOARD_LAYOUT sort_key PUBLIC_KEY primary_key image_key label_key
    hotkey turkey keys key_size author authors PASSES passes num_passes forward_pass BYPASS COMPASS BYPASS_CACHE
    encompass pass_through passenger PWD OLDPWD PATH PYTHONPATH PATIENCE patience PATTERN patch spatial compat
    secretary secretion data url bucket host_path endpoint_url storage_path prefix container account_url path
    location SSH_AUTH_SOCK connection conn_timeout webhook_id NCCL_DEBUG CUDA_VISIBLE_DEVICES OMP_NUM_THREADS
    display description
"""


def words_of(text: str) -> list[str]:
    return text.split()


@pytest.mark.parametrize("name", words_of(SECRET_NAMES))
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", words_of(INNOCENT_NAMES))
def test_names_of_no_secrets(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgres://u:p@db:5432/x?sslmode=require", f"postgres://{MASK}@db:5432/x?sslmode=require"),
        ("redis://:p@h", f"redis://{MASK}@h"),
        ("mysql://u:p@ss@h/x", f"mysql://{MASK}@h/x"),
        ("https://ghp_abc@github.com/a.git", f"https://{MASK}@github.com/a.git"),
        ("see a://u:p@h and b://v:q@i", f"see a://{MASK}@h and b://{MASK}@i"),
        ("https://x.blob.core.windows.net/c?sv=1&sig=abc%3D", f"https://x.blob.core.windows.net/c?sv=1&sig={MASK}"),
        ("https://h/x?api_key=k&n=1", f"https://h/x?api_key={MASK}&n=1"),
        ("Protocol=https;AccountName=n;AccountKey=k==", f"Protocol=https;AccountName=n;AccountKey={MASK}"),
        ("ssh://git@github.com/a.git", "ssh://git@github.com/a.git"),
        ("https://git@github.com/a.git", "https://git@github.com/a.git"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("ann@example.org", "ann@example.org"),
        ("https://h/a:b@c?max_tokens=3", "https://h/a:b@c?max_tokens=3"),
    ],
)
def test_secret_parts_of_any_text_are_masked(text: str, masked: str) -> None:
    assert mask_inside(text) == masked
    assert mask_inside(masked) == masked
    config = json.dumps({"data": {"place": text}})
    assert json.loads(mask_secrets(config))["data"]["place"] == masked
    assert json.loads(restore_secrets(mask_secrets(config), [config])) == json.loads(config)


STORAGES = (
    {"type": "azure", "container": "c", "connection_string": "AccountKey=SECRET"},
    {"type": "azure", "container": "c", "account_url": "https://a.net/c?sig=SECRET", "credential": "SECRET"},
    {"type": "s3", "bucket": "b", "access_key": "SECRET", "secret_key": "SECRET", "endpoint_url": "http://SECRET:x@h"},
    {"type": "shared_fs", "host_path": "/data", "storage_path": "x"},
)
VARIABLES = (
    ["DATABASE_URL=postgres://u:SECRET@db/x", "PGPASSWORD=SECRET", "MINE=SECRET", "SIZE=3"],
    {"cpu": ["DB_PASS=SECRET"], "cuda": ["mine=SECRET", "SIZE=3"]},
    {"OPENAI_KEY": "SECRET", "DATABASE_URL": "postgres://u:SECRET@db/x", "Mine": "SECRET", "SIZE": "3"},
)
REST: dict[str, Any] = {
    "environment": {
        "registry_auth": {"username": "SECRET", "password": "SECRET", "serveraddress": "SECRET"},
        "secret_names": ["MINE"],
        "pod_spec": {"spec": {"env": [{"name": "DB_PASS", "value": "SECRET"}, {"name": "SIZE", "value": "3"}]}},
    },
    "integrations": {"slack": {"webhook_url": "SECRET"}, "webhooks": {"webhook_id": ["shown"]}},
    "data": {"mine": {"below": ["SECRET"]}, "url": "s3://shown"},
}


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("variables", VARIABLES, ids=["list", "kinds", "mapping"])
def test_every_section_hides_its_secrets_and_gets_them_back(storage: Any, variables: Any) -> None:
    environment = {**REST["environment"], "environment_variables": variables}
    config = {**REST, "environment": environment, "checkpoint_storage": storage, "tensorboard_storage": storage}
    text = json.dumps(config)
    masked = mask_secrets(text)
    assert "SECRET" not in masked
    shown = json.loads(masked)
    assert "SIZE" in masked, "a variable's name stays"
    assert shown["data"]["url"] == "s3://shown"
    assert shown["integrations"]["webhooks"] == {"webhook_id": ["shown"]}
    assert shown["environment"]["secret_names"] == ["MINE"]
    assert shown["checkpoint_storage"].get("host_path") == storage.get("host_path")
    assert json.loads(restore_secrets(masked, ["{}", text])) == config


def test_part_of_a_text_that_no_source_has_is_refused() -> None:
    with pytest.raises(GanglineError) as refusal:
        restore_secrets(json.dumps({"data": {"place": f"a://{MASK}@h"}}), ['{"data": {"place": "a://u:p@other"}}'])
    assert refusal.value.code == "config.masked"
    text = json.dumps({"data": {"note": f"{MASK} three stars twice"}})
    assert json.loads(restore_secrets(text, [])) == json.loads(text)


def test_only_secrets_are_masked_and_come_back() -> None:
    text = json.dumps(CONFIG)
    masked = mask_secrets(text)
    assert not [secret for secret in SECRETS if secret in masked]
    assert masked.count(MASK) == len(SECRETS)
    assert json.loads(masked)["data"]["auth"][1] == "", "an empty value is no secret"
    assert json.loads(masked)["environment"]["environment_variables"]["cpu"] == [f"HF_TOKEN={MASK}", "SIZE=3"]
    assert {**CONFIG, **json.loads(restore_secrets(masked, ["{}", text]))} == CONFIG
    assert mask_secrets(masked) == masked


def test_a_text_without_secrets_stays_as_it_is() -> None:
    text = '{"data": {"tokenizer":"bert"},   "environment": {"environment_variables": []}}'
    assert mask_secrets(text) is text
    assert restore_secrets(text, [json.dumps(CONFIG)]) is text
    assert mask_secrets("") == ""


def test_a_list_for_all_kinds_of_slots_gives_its_values_to_each_kind() -> None:
    source = {"environment": {"environment_variables": ["A_TOKEN=1", "B_TOKEN=2"]}}
    merged = {"environment": {"environment_variables": {"cpu": [f"B_TOKEN={MASK}"], "cuda": [f"A_TOKEN={MASK}"]}}}
    back = json.loads(restore_secrets(json.dumps(merged), [json.dumps(source)]))
    assert back["environment"]["environment_variables"] == {"cpu": ["B_TOKEN=2"], "cuda": ["A_TOKEN=1"]}


def test_a_mask_without_a_value_is_refused_with_its_place() -> None:
    with pytest.raises(GanglineError) as refusal:
        restore_secrets(mask_secrets(json.dumps(CONFIG)), [json.dumps({"data": {"api_key": "k"}})])
    assert refusal.value.code == "config.masked"
    assert refusal.value.message == (
        f"data.db.password: {MASK} stands for a value that is not shown; write the value itself"
    )


@given(
    st.recursive(st.text(), lambda inner: st.dictionaries(st.sampled_from(["token", "x", "auth"]), inner), max_leaves=8)
)
def test_masking_and_restoring_is_the_identity(data: Any) -> None:
    text = json.dumps({"data": data})
    assert json.loads(restore_secrets(mask_secrets(text), [text])) == {"data": data}
