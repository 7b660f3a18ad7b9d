"""Language models of transformers: decoders, encoders, both, mixtures of experts, state spaces, shared layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.architecture.library import load
from benchmarks.architecture.model import LENGTH, SINGLE, WORDS, Architecture, Records, predict_words, whole

IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": WORDS}
LAYERS = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {**IDS, **LAYERS}
KEYS = {**TEXT, "num_key_value_heads": 2}
DRY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT = {**IDS, "n_embd": 32, "n_layer": 4, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
SIDES = {
    **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "dropout": 0.0, "decoder_start_token_id": 2},
}
# A product of groups, which is the default, has no kernel for double precision.
_EXPERTS = {"experts_implementation": "eager"}
_T5 = {**IDS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0,
       "decoder_start_token_id": 0}  # fmt: skip
_NEO = {
    **IDS, "hidden_size": 32, "num_layers": 4, "num_heads": 4, "attention_types": [[["global", "local"], 2]],
    "resid_dropout": 0.0, "embed_dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip
_DISTIL = {**IDS, "dim": 32, "n_layers": 4, "n_heads": 4, "hidden_dim": 64, "dropout": 0.0, "attention_dropout": 0.0}

# Name, class of the model, class of its configuration, options.
_ROWS: dict[str, list[tuple[str, str, str, dict[str, Any]]]] = {
    "decoder": [
        ("GPT-2", "GPT2LMHeadModel", "GPT2Config", GPT),
        ("GPT-Neo", "GPTNeoForCausalLM", "GPTNeoConfig", _NEO),
        ("GPT-NeoX", "GPTNeoXForCausalLM", "GPTNeoXConfig", TEXT),
        ("GPT-J", "GPTJForCausalLM", "GPTJConfig", {**GPT, "rotary_dim": 4}),
        ("OPT", "OPTForCausalLM", "OPTConfig", {**TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.0}),
        ("BLOOM", "BloomForCausalLM", "BloomConfig", {**IDS, "hidden_size": 32, "n_layer": 4, "n_head": 4}),
        ("Llama", "LlamaForCausalLM", "LlamaConfig", KEYS),
        ("Mistral", "MistralForCausalLM", "MistralConfig", KEYS),
        ("Qwen3", "Qwen3ForCausalLM", "Qwen3Config", {**KEYS, "head_dim": 8}),
        ("Gemma 2", "Gemma2ForCausalLM", "Gemma2Config", {**KEYS, "head_dim": 8}),
        ("Phi-3", "Phi3ForCausalLM", "Phi3Config", {**KEYS, "resid_pdrop": 0.0}),
        ("Falcon", "FalconForCausalLM", "FalconConfig", TEXT),
        ("StableLM", "StableLmForCausalLM", "StableLmConfig", KEYS),
    ],
    "encoder": [
        ("BERT", "BertForMaskedLM", "BertConfig", {**TEXT, **DRY}),
        ("RoBERTa", "RobertaForMaskedLM", "RobertaConfig", {**TEXT, **DRY}),
        ("DistilBERT", "DistilBertForMaskedLM", "DistilBertConfig", _DISTIL),
        ("ELECTRA", "ElectraForMaskedLM", "ElectraConfig", {**TEXT, **DRY, "embedding_size": 16}),
        ("DeBERTa-v2", "DebertaV2ForMaskedLM", "DebertaV2Config", {**TEXT, **DRY, "pooler_hidden_size": 32}),
        ("MPNet", "MPNetForMaskedLM", "MPNetConfig", {**TEXT, **DRY}),
    ],
    "encoder with shared layers": [
        ("ALBERT", "AlbertForMaskedLM", "AlbertConfig", {**TEXT, **DRY, "embedding_size": 16}),
    ],
    "encoder and decoder": [
        ("T5", "T5ForConditionalGeneration", "T5Config", _T5),
        ("BART", "BartForConditionalGeneration", "BartConfig", {**IDS, **SIDES}),
        ("Pegasus", "PegasusForConditionalGeneration", "PegasusConfig", {**IDS, **SIDES}),
        ("Marian", "MarianMTModel", "MarianConfig", {**IDS, **SIDES, "decoder_vocab_size": WORDS}),
    ],
    "mixture of experts": [
        ("Mixtral", "MixtralForCausalLM", "MixtralConfig", {**KEYS, **_EXPERTS, "num_local_experts": 4}),
        ("Qwen2-MoE", "Qwen2MoeForCausalLM", "Qwen2MoeConfig", {**KEYS, **_EXPERTS, "num_experts": 4,
         "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}),
    ],
    "state space": [
        ("Mamba", "MambaForCausalLM", "MambaConfig",
         {**IDS, "hidden_size": 32, "num_hidden_layers": 4, "state_size": 4}),
    ],
}  # fmt: skip


def of_transformers(model: str, config: str, **options: Any) -> nn.Module:
    library = load("transformers")
    made: nn.Module = getattr(library, model)(getattr(library, config)(**options))
    return made


def words(records: int, *, padded: bool = False, name: str = "input_ids") -> Records:
    """padded: whether the second half of the last record is padding."""
    ids = whole(records, LENGTH, least=3, limit=WORDS)
    found = {name: ids, "wanted": whole(records, LENGTH, limit=WORDS, seed=3)}
    if padded:
        mask = ids.new_ones(ids.shape)
        mask[1::2, LENGTH - 2 :] = 0
        found["attention_mask"] = mask
    return found


def _both_sides(records: int) -> Records:
    return {**words(records, padded=True), "decoder_input_ids": whole(records, LENGTH, least=3, limit=WORDS, seed=4)}


# Mamba computes its words in single precision, whatever its parameters have.
_SINGLE: dict[str, dict[str, Any]] = {"Mamba": {"number_type": torch.float32, "tolerance": SINGLE}}
_RECORDS: dict[str, Callable[[int], Records]] = {
    "encoder": partial(words, padded=True),
    "encoder with shared layers": partial(words, padded=True),
    "encoder and decoder": _both_sides,
}


def list_text() -> list[Architecture]:
    return [
        Architecture(
            name, family, "transformers", partial(of_transformers, model, config, **options),
            _RECORDS.get(family, words), predict_words, **_SINGLE.get(name, {}),
        )
        for family, rows in _ROWS.items()
        for name, model, config, options in rows
    ]  # fmt: skip
