"""The rule by which values are secrets, and that a masked configuration gets back its own secrets alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.config.layer.secret import MASK, is_secret, mask_secrets, restore_secrets
from gangline.errors import GanglineError

CONFIG: dict[str, Any] = {
    "name": "token",
    "data": {"api_key": "k-1", "url": "s3://b", "db": {"password": "p-2", "port": 5432}, "auth": [{"user": "u-3"}, ""]},
    "environment": {"environment_variables": {"cpu": ["HF_TOKEN=t-4=x", "SIZE=3"], "cuda": ["HF_TOKEN=t-5"]}},
    "hyperparameters": {"token": "shown"},
    "checkpoint_storage": {"secret_key": "s-6"},
}
SECRETS = ("k-1", "p-2", "u-3", "t-4=x", "t-5", "s-6")


@pytest.mark.parametrize(
    "name",
    ["password", "DB_PASSWORD", "apiKey", "api-key", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "registry_auth", "APIKEY"],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["tokenizer", "max_tokens", "key", "monkey", "author", "sort_key", "passes", "data"])
def test_names_of_no_secrets(name: str) -> None:
    assert not is_secret(name)


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
