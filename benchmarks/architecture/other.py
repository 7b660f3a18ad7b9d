"""Models of sound, of images with text, of diffusion, with adapters, and recurrent ones."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.architecture.library import load
from benchmarks.architecture.model import (
    CLASSES,
    LENGTH,
    WORDS,
    Architecture,
    Records,
    classify,
    classify_named,
    images,
    imitate,
    numbers,
    predict_words,
    whole,
)
from benchmarks.architecture.text import DRY, GPT, IDS, KEYS, SIDES, TEXT, of_transformers, words
from benchmarks.architecture.vision import VISION

_CLIP = {"text_config": {**TEXT, "projection_dim": 16}, "vision_config": {**VISION, "projection_dim": 16}}
_WAVE = {
    **TEXT, "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "hidden_dropout": 0.0, "attention_dropout": 0.0,
    "activation_dropout": 0.0, "feat_proj_dropout": 0.0, "final_dropout": 0.0, "layerdrop": 0.0, "mask_time_prob": 0.0,
}  # fmt: skip
_WHISPER = {**IDS, **SIDES, "num_mel_bins": 8, "max_source_positions": 8, "max_target_positions": LENGTH}
_UNET = {"sample_size": 16, "block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}
_DIT = {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "num_layers": 4, "sample_size": 8,
        "patch_size": 2, "norm_num_groups": 4, "num_embeds_ada_norm": 4}  # fmt: skip
_SD3 = {"num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4, "out_channels": 4, "num_layers": 4,
        "sample_size": 8, "patch_size": 2, "joint_attention_dim": 16, "caption_projection_dim": 32,
        "pooled_projection_dim": 16, "pos_embed_max_size": 8}  # fmt: skip
_VAE = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4, "latent_channels": 4,
        "sample_size": 16, "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2}  # fmt: skip


class _Recurrent(nn.Module):
    """An embedding, one or several recurrent modules, and a Linear."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(16, WORDS)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = self.words(input_ids)
        for layer in self.layers:
            hidden, _ = layer(hidden)
        return self.head(hidden)  # type: ignore[no-any-return]  # torch leaves a module's call untyped


class _OneLSTM(nn.Module):
    """All layers of the recurrence are one module, as most code has it."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, num_layers=2, batch_first=True)
        self.linear = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.lstm(x)[0][:, -1])  # type: ignore[no-any-return]  # torch leaves it untyped


class _ResidualBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.norm(self.convolution(x)))


def _residual_net() -> nn.Module:
    blocks = (_ResidualBlock() for _ in range(4))
    return nn.Sequential(nn.Conv2d(3, 8, 4, 4), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))


class _Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.transformer = nn.Transformer(16, 2, 2, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, WORDS)

    def forward(self, input_ids: torch.Tensor, decoder_input_ids: torch.Tensor) -> torch.Tensor:
        hidden = self.transformer(self.words(input_ids), self.words(decoder_input_ids))
        return self.head(hidden)  # type: ignore[no-any-return]  # torch leaves a module's call untyped


def _list_torch() -> list[Architecture]:
    def sequences(records: int) -> Records:
        return {"x": numbers(records, LENGTH, 8), "classes": whole(records)}

    def pairs(records: int) -> Records:
        return {**words(records), "decoder_input_ids": whole(records, LENGTH, limit=WORDS, seed=4)}

    def stacked() -> nn.Module:
        return _Recurrent(*(nn.LSTM(16, 16, batch_first=True) for _ in range(4)))

    return [
        Architecture("Convolutions with BatchNorm", "convolutions", "torch", _residual_net, images(size=16), classify),
        Architecture("LSTM and Linear", "recurrent", "torch", _OneLSTM, sequences, classify),
        Architecture("LSTM layers in a ModuleList", "recurrent", "torch", stacked, words, predict_words),
        Architecture("nn.Transformer", "encoder and decoder", "torch", _Translator, pairs, predict_words),
    ]


def _of_diffusers(name: str, **options: Any) -> nn.Module:
    made: nn.Module = getattr(load("diffusers"), name)(**options)
    return made


def _dit() -> nn.Module:
    model = _of_diffusers("DiTTransformer2DModel", **_DIT)
    embeddings: list[Any] = [module for module in model.modules() if hasattr(module, "dropout_prob")]
    for embedding in embeddings:
        embedding.dropout_prob = 0.0  # of class labels
    return model


def _noisy(records: int, name: str = "sample", size: int = 16, channels: int = 3) -> Records:
    return {name: numbers(records, channels, size, size), "timestep": torch.arange(records)}


def _conditioned(records: int) -> Records:
    return {**_noisy(records), "encoder_hidden_states": numbers(records, 4, 16)}


def _labelled(records: int) -> Records:
    return {**_noisy(records, "hidden_states", 8, 4), "class_labels": whole(records)}


def _joint(records: int) -> Records:
    return {
        **_noisy(records, "hidden_states", 8, 4),
        "encoder_hidden_states": numbers(records, 4, 16),
        "pooled_projections": numbers(records, 16),
    }


def _list_diffusion() -> list[Architecture]:
    unet = partial(
        _of_diffusers, "UNet2DModel", down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=4, **_UNET,
    )  # fmt: skip
    conditional = partial(
        _of_diffusers, "UNet2DConditionModel", down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=16, attention_head_dim=4,
        in_channels=3, out_channels=3, **_UNET,
    )  # fmt: skip
    return [
        Architecture("UNet", "diffusion UNet", "diffusers", unet, _noisy, imitate),
        Architecture("Conditional UNet", "diffusion UNet", "diffusers", conditional, _conditioned, imitate),
        Architecture("DiT", "diffusion transformer", "diffusers", _dit, _labelled, imitate),
        Architecture("Stable Diffusion 3", "diffusion transformer", "diffusers",
                     partial(_of_diffusers, "SD3Transformer2DModel", **_SD3), _joint, imitate),
        Architecture("VAE", "autoencoder", "diffusers", partial(_of_diffusers, "AutoencoderKL", **_VAE),
                     lambda records: {"sample": numbers(records, 3, 16, 16)}, imitate),
    ]  # fmt: skip


def _lora(model: str, config: str, options: dict[str, Any], targets: list[str]) -> nn.Module:
    peft = load("peft")
    setting = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=targets, init_lora_weights=False)
    made: nn.Module = peft.get_peft_model(of_transformers(model, config, **options), setting)
    return made


def _list_adapted() -> list[Architecture]:
    rows: list[tuple[str, str, str, dict[str, Any], list[str]]] = [
        ("LoRA on GPT-2", "GPT2LMHeadModel", "GPT2Config", GPT, ["c_attn"]),
        ("LoRA on Llama", "LlamaForCausalLM", "LlamaConfig", KEYS, ["q_proj", "v_proj"]),
        ("LoRA on BERT", "BertForMaskedLM", "BertConfig", {**TEXT, **DRY}, ["query", "value"]),
    ]
    return [
        Architecture(name, "adapters (LoRA)", "peft", partial(_lora, model, config, options, targets), words,
                     predict_words)
        for name, model, config, options, targets in rows
    ]  # fmt: skip


def _pairs_of_both(records: int) -> Records:
    ids = whole(records, LENGTH, least=3, limit=WORDS)
    return {"input_ids": ids, "pixel_values": numbers(records, 3, 32, 32)}


def _contrast(model: nn.Module, records: Records) -> torch.Tensor:
    scores = model(**records).logits_per_text
    return functional.cross_entropy(scores, torch.arange(len(scores)))


def _heard(records: int) -> Records:
    return {"input_values": numbers(records, 400), "classes": whole(records)}


def _transcribed(records: int) -> Records:
    return {
        "input_features": numbers(records, 8, 16),
        "decoder_input_ids": whole(records, LENGTH, least=3, limit=WORDS),
        "wanted": whole(records, LENGTH, limit=WORDS, seed=3),
    }


def list_other() -> list[Architecture]:
    wave = {**_WAVE, "num_labels": CLASSES, "classifier_proj_size": 16}
    return [
        Architecture("CLIP", "images with text", "transformers",
                     partial(of_transformers, "CLIPModel", "CLIPConfig", projection_dim=16, **_CLIP),
                     _pairs_of_both, _contrast),
        Architecture("Wav2Vec2", "sound", "transformers",
                     partial(of_transformers, "Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", **wave),
                     _heard, classify_named),
        Architecture("HuBERT", "sound", "transformers",
                     partial(of_transformers, "HubertForSequenceClassification", "HubertConfig", **wave),
                     _heard, classify_named),
        Architecture("Whisper", "sound", "transformers",
                     partial(of_transformers, "WhisperForConditionalGeneration", "WhisperConfig", **_WHISPER),
                     _transcribed, predict_words),
        *_list_diffusion(),
        *_list_adapted(),
        *_list_torch(),
    ]  # fmt: skip
