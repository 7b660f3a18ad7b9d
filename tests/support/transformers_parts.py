"""Trains models of transformers in parts and as a whole. In a process of its own, which has the library."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import torch

from gangline.pytorch.parallel.staged.part import Parts
from gangline.pytorch.parallel.staged.unit import find_units
from tests.support.parts_alone import cut, train_parts, train_whole

_TEXT = {
    **{"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 50},
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
}
_EXPERTS = {"num_local_experts": 4, "experts_implementation": "eager"}
_GPT = {"n_embd": 32, "n_layer": 4, "n_head": 4, "vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2}
_TWO_SIDES = {
    **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": 50},
}
_VISION = {
    **{"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64},
    **{"image_size": 32, "patch_size": 8},
}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 50}


def _text() -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 50, (2, 12))
    mask = torch.ones_like(ids)
    mask[0, 9:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def _language() -> dict[str, torch.Tensor]:
    text = _text()
    return {**text, "labels": text["input_ids"]}


def _images() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, 32, 32).double()}


# Each with its inputs. Most define a module in another order than that in which it runs, and many return a cache.
MODELS: dict[str, tuple[Callable[[Any], Any], Callable[[], dict[str, Any]]]] = {
    "llama": (lambda t: t.LlamaForCausalLM(t.LlamaConfig(**_TEXT, num_key_value_heads=2)), _language),
    "mixtral": (
        lambda t: t.MixtralForCausalLM(t.MixtralConfig(**_TEXT, **_EXPERTS, num_key_value_heads=2)),
        _language,
    ),
    "gpt2": (lambda t: t.GPT2LMHeadModel(t.GPT2Config(**_GPT)), _language),
    "t5": (lambda t: t.T5ForConditionalGeneration(t.T5Config(**_T5, decoder_start_token_id=0)), _language),
    "bart": (lambda t: t.BartForConditionalGeneration(t.BartConfig(**_TWO_SIDES)), _language),
    "bert": (lambda t: t.BertForMaskedLM(t.BertConfig(**_TEXT, output_hidden_states=True)), _language),
    "clip": (
        lambda t: t.CLIPModel(t.CLIPConfig(text_config=_TEXT, vision_config=_VISION, projection_dim=16)),
        lambda: {**_text(), **_images(), "return_loss": True},
    ),
    "vit": (
        lambda t: t.ViTForImageClassification(t.ViTConfig(**_VISION)),
        lambda: {**_images(), "labels": torch.tensor([0, 1])},
    ),
}


class _Loss(torch.nn.Module):
    """Calls a model with keywords."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: dict[str, Any]) -> Any:
        return self.model(**inputs)


def _cut_copy(model: Any, borders: set[int]) -> tuple[Parts, Any]:
    own = copy.deepcopy(model)
    return cut(own, borders), own


def main() -> None:
    """Prints the name of each model whose parts train what the model does."""
    transformers = importlib.import_module("transformers")
    torch.distributed.get_rank = lambda group=None: 0  # this process has no group
    for name, (make, make_inputs) in MODELS.items():
        torch.manual_seed(1)
        # Evaluation drops nothing, so that random numbers play no part.
        whole = _Loss(make(transformers)).double().eval()
        inputs = make_inputs()
        wanted = train_whole(whole, inputs)
        # Parts of different sizes, also a last one without a layer.
        number = len(find_units(whole))
        for borders in ({1, number // 2}, {number // 2, number - 1}):
            parts, own = _cut_copy(whole, borders)
            for _ in range(2):
                torch.testing.assert_close(train_parts(parts, own, inputs), wanted)
        print("SAME", name)


if __name__ == "__main__":
    main()
