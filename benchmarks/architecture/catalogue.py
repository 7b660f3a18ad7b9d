"""Small random models of public libraries, each with inputs. Nothing is downloaded: all weights are random.

Libraries are imported when a model is made, so a missing one leaves out its models only.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

LIBRARIES = ("transformers", "timm", "torchvision", "diffusers", "peft")
_WORDS = 50


@dataclass(frozen=True, slots=True)
class Architecture:
    """make: returns the model. batch: returns inputs by name for so many records, their first dimension."""

    name: str
    library: str
    make: Callable[[], nn.Module]
    batch: Callable[[int], dict[str, torch.Tensor]]


def missing_libraries() -> list[str]:
    return [name for name in LIBRARIES if importlib.util.find_spec(name) is None]


def _tokens(records: int, name: str = "input_ids") -> dict[str, torch.Tensor]:
    return {name: torch.randint(3, _WORDS, (records, 8), generator=torch.Generator().manual_seed(1))}


def _two_sides(records: int) -> dict[str, torch.Tensor]:
    return {**_tokens(records), **_tokens(records, "decoder_input_ids")}


def _images(records: int, name: str = "pixel_values", size: int = 32, channels: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(records, channels, size, size, generator=generator, dtype=torch.float64)}


def _both(records: int) -> dict[str, torch.Tensor]:
    return {**_tokens(records), **_images(records)}


def _sound(records: int, name: str, *shape: int) -> dict[str, torch.Tensor]:
    return {name: torch.randn(records, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)}


def _of_transformers(model: str, config: str, **options: Any) -> nn.Module:
    library = importlib.import_module("transformers")
    made: nn.Module = getattr(library, model)(getattr(library, config)(**options))
    return made


_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": _WORDS}
_LAYERS = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
_TEXT = {**_IDS, **_LAYERS}
_KEYS = {"num_key_value_heads": 2}
_DRY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_SIDES = {
    **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "dropout": 0.0, "decoder_start_token_id": 2},
}
_GPT = {**_IDS, "n_embd": 32, "n_layer": 4, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_VISION = {**_LAYERS, **_DRY, "image_size": 32, "patch_size": 8}
_T5 = {**_IDS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
_T5["decoder_start_token_id"] = 0

_LANGUAGE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", _GPT),
    "GPT-Neo": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {
            **_IDS,
            "hidden_size": 32,
            "num_layers": 4,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 2]],
            "resid_dropout": 0.0,
            "embed_dropout": 0.0,
            "attention_dropout": 0.0,
        },
    ),
    "GPT-NeoX": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _TEXT),
    "GPT-J": ("GPTJForCausalLM", "GPTJConfig", {**_GPT, "rotary_dim": 4}),
    "OPT": ("OPTForCausalLM", "OPTConfig", {**_TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.0}),
    "BLOOM": ("BloomForCausalLM", "BloomConfig", {**_IDS, "hidden_size": 32, "n_layer": 4, "n_head": 4}),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", {**_TEXT, **_KEYS}),
    "Mistral": ("MistralForCausalLM", "MistralConfig", {**_TEXT, **_KEYS}),
    "Mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {**_TEXT, **_KEYS, "num_local_experts": 4, "experts_implementation": "eager"},
    ),
    "Qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {**_TEXT, **_KEYS}),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**_TEXT, **_KEYS, "head_dim": 8}),
    "Gemma": ("GemmaForCausalLM", "GemmaConfig", {**_TEXT, **_KEYS, "head_dim": 8}),
    "Gemma 2": ("Gemma2ForCausalLM", "Gemma2Config", {**_TEXT, **_KEYS, "head_dim": 8}),
    "Phi": ("PhiForCausalLM", "PhiConfig", _TEXT),
    "Phi-3": ("Phi3ForCausalLM", "Phi3Config", {**_TEXT, **_KEYS}),
    "Falcon": ("FalconForCausalLM", "FalconConfig", _TEXT),
    "StableLM": ("StableLmForCausalLM", "StableLmConfig", _TEXT),
    "OLMo": ("OlmoForCausalLM", "OlmoConfig", _TEXT),
    "Cohere": ("CohereForCausalLM", "CohereConfig", {**_TEXT, **_KEYS}),
    "Mamba": ("MambaForCausalLM", "MambaConfig", {**_IDS, "hidden_size": 32, "num_hidden_layers": 4, "state_size": 4}),
    "BERT": ("BertForMaskedLM", "BertConfig", {**_TEXT, **_DRY}),
    "RoBERTa": ("RobertaForMaskedLM", "RobertaConfig", {**_TEXT, **_DRY}),
    "DistilBERT": (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {**_IDS, "dim": 32, "n_layers": 4, "n_heads": 4, "hidden_dim": 64, "dropout": 0.0, "attention_dropout": 0.0},
    ),
    "ALBERT": ("AlbertForMaskedLM", "AlbertConfig", {**_TEXT, **_DRY, "embedding_size": 16}),
    "ELECTRA": ("ElectraForMaskedLM", "ElectraConfig", {**_TEXT, **_DRY, "embedding_size": 16}),
    "DeBERTa": ("DebertaV2ForMaskedLM", "DebertaV2Config", {**_TEXT, **_DRY, "pooler_hidden_size": 32}),
    "MPNet": ("MPNetForMaskedLM", "MPNetConfig", {**_TEXT, **_DRY}),
}
_SEQUENCES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "T5": ("T5ForConditionalGeneration", "T5Config", _T5),
    "BART": ("BartForConditionalGeneration", "BartConfig", {**_IDS, **_SIDES}),
    "Pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", {**_IDS, **_SIDES}),
    "Marian": ("MarianMTModel", "MarianConfig", {**_IDS, **_SIDES, "decoder_vocab_size": _WORDS}),
}
_SIGHT: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ViT": ("ViTForImageClassification", "ViTConfig", _VISION),
    "DeiT": ("DeiTForImageClassification", "DeiTConfig", _VISION),
    "BEiT": ("BeitForImageClassification", "BeitConfig", {**_VISION, "drop_path_rate": 0.0}),
    "DINOv2": ("Dinov2ForImageClassification", "Dinov2Config", {**_VISION, "drop_path_rate": 0.0}),
    "Swin": (
        "SwinForImageClassification",
        "SwinConfig",
        {**_DRY, "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
         "window_size": 4, "drop_path_rate": 0.0},
    ),
    "ConvNeXT": (
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 2, 1], "image_size": 32},
    ),
    "SegFormer": (
        "SegformerForImageClassification",
        "SegformerConfig",
        {**_DRY, "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32], "num_attention_heads": [1, 2, 2, 4],
         "drop_path_rate": 0.0, "classifier_dropout_prob": 0.0},
    ),
}  # fmt: skip
_TIMM = {
    "ResNet-18 (timm)": ("resnet18", {}),
    "ViT (timm)": ("vit_tiny_patch16_224", {"img_size": 32, "depth": 4, "embed_dim": 32, "num_heads": 4}),
    "MLP-Mixer": ("mixer_s32_224", {"img_size": 32, "patch_size": 8, "num_blocks": 4, "embed_dim": 32}),
    "EfficientNet-B0": ("efficientnet_b0", {}),
    "MobileNetV3": ("mobilenetv3_small_050", {}),
    "ConvMixer": ("convmixer_768_32", {"depth": 4, "dim": 32}),
    "DeiT-III": ("deit3_small_patch16_224", {"img_size": 32, "depth": 4, "embed_dim": 32, "num_heads": 4}),
}
_TORCHVISION = ("resnet18", "vgg11_bn", "densenet121", "mobilenet_v2", "squeezenet1_1", "shufflenet_v2_x0_5")


def _of_timm(name: str, options: dict[str, Any]) -> nn.Module:
    made: nn.Module = importlib.import_module("timm").create_model(name, pretrained=False, num_classes=4, **options)
    return made


def _of_torchvision(name: str) -> nn.Module:
    made: nn.Module = getattr(importlib.import_module("torchvision.models"), name)(num_classes=4)
    return made


def _of_diffusers(name: str, **options: Any) -> nn.Module:
    made: nn.Module = getattr(importlib.import_module("diffusers"), name)(**options)
    return made


def _lora(model: str, config: str, options: dict[str, Any], targets: list[str]) -> nn.Module:
    peft = importlib.import_module("peft")
    setting = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=targets, init_lora_weights=False)
    made: nn.Module = peft.get_peft_model(_of_transformers(model, config, **options), setting)
    return made


def _noisy(records: int) -> dict[str, torch.Tensor]:
    return {**_images(records, "sample", 16), "timestep": torch.arange(records)}


def _conditioned(records: int) -> dict[str, torch.Tensor]:
    return {**_noisy(records), **_sound(records, "encoder_hidden_states", 4, 16)}


def _labelled(records: int) -> dict[str, torch.Tensor]:
    return {
        **_images(records, "hidden_states", 8, 4),
        "timestep": torch.arange(records),
        "class_labels": torch.arange(records) % 4,
    }


_UNET = {"sample_size": 16, "block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}
_CLIP = {"text_config": {**_TEXT, "projection_dim": 16}, "vision_config": {**_VISION, "projection_dim": 16}}


def list_architectures() -> list[Architecture]:
    """Returns all, those of missing libraries too."""
    return [
        *(Architecture(name, "transformers", partial(_of_transformers, model, config, **options), _tokens)
          for name, (model, config, options) in _LANGUAGE.items()),
        *(Architecture(name, "transformers", partial(_of_transformers, model, config, **options), _two_sides)
          for name, (model, config, options) in _SEQUENCES.items()),
        *(Architecture(name, "transformers", partial(_of_transformers, model, config, **options), _images)
          for name, (model, config, options) in _SIGHT.items()),
        Architecture(
            "CLIP", "transformers",
            partial(_of_transformers, "CLIPModel", "CLIPConfig", projection_dim=16, **_CLIP), _both,
        ),
        Architecture(
            "Wav2Vec2",
            "transformers",
            partial(
                _of_transformers, "Wav2Vec2ForCTC", "Wav2Vec2Config", **_TEXT, conv_dim=(16, 16), conv_stride=(5, 2),
                conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=8,
                num_conv_pos_embedding_groups=2, hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
                feat_proj_dropout=0.0, final_dropout=0.0, layerdrop=0.0, mask_time_prob=0.0,
            ),
            lambda records: _sound(records, "input_values", 400),
        ),
        *(Architecture(name, "timm", partial(_of_timm, model, options), partial(_images, name="x"))
          for name, (model, options) in _TIMM.items()),
        *(Architecture(f"{name} (torchvision)", "torchvision", partial(_of_torchvision, name),
                       partial(_images, name="x")) for name in _TORCHVISION),
        Architecture(
            "UNet", "diffusers",
            partial(_of_diffusers, "UNet2DModel", down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                    up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=4, **_UNET),
            _noisy,
        ),
        Architecture(
            "Conditional UNet", "diffusers",
            partial(_of_diffusers, "UNet2DConditionModel", down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
                    up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=16, attention_head_dim=4,
                    in_channels=3, out_channels=3, **_UNET),
            _conditioned,
        ),
        Architecture(
            "DiT", "diffusers",
            partial(_of_diffusers, "DiTTransformer2DModel", num_attention_heads=2, attention_head_dim=8, in_channels=4,
                    num_layers=4, sample_size=8, patch_size=2, norm_num_groups=4, num_embeds_ada_norm=4),
            _labelled,
        ),
        Architecture(
            "LoRA on GPT-2", "peft", partial(_lora, "GPT2LMHeadModel", "GPT2Config", _GPT, ["c_attn"]), _tokens
        ),
        Architecture(
            "LoRA on Llama", "peft",
            partial(_lora, "LlamaForCausalLM", "LlamaConfig", {**_TEXT, **_KEYS}, ["q_proj", "v_proj"]), _tokens,
        ),
        Architecture(
            "LoRA on BERT", "peft",
            partial(_lora, "BertForMaskedLM", "BertConfig", {**_TEXT, **_DRY}, ["query", "value"]), _tokens,
        ),
    ]  # fmt: skip
