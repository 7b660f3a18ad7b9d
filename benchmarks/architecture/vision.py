"""Models for images: transformers, timm and torchvision; classification, segmentation, detection."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.architecture.library import load
from benchmarks.architecture.model import (
    CLASSES,
    SINGLE,
    Architecture,
    Records,
    classify,
    classify_named,
    images,
    main_tensor,
    numbers,
    whole,
)
from benchmarks.architecture.text import DRY, LAYERS, of_transformers

VISION = {**LAYERS, **DRY, "image_size": 32, "patch_size": 8, "num_labels": CLASSES}
_SWIN = {**DRY, "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
         "window_size": 4, "drop_path_rate": 0.0, "num_labels": CLASSES}  # fmt: skip
_SEGFORMER = {**DRY, "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32], "num_attention_heads": [1, 2, 2, 4],
              "drop_path_rate": 0.0, "classifier_dropout_prob": 0.0, "decoder_hidden_size": 16,
              "num_labels": CLASSES}  # fmt: skip
_RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "layer_type": "basic"}
_TINY = {"img_size": 32, "depth": 4, "embed_dim": 32, "num_heads": 4}

_OF_TRANSFORMERS: list[tuple[str, str, str, str, dict[str, Any]]] = [
    ("ViT", "vision transformer", "ViTForImageClassification", "ViTConfig", VISION),
    ("DeiT", "vision transformer", "DeiTForImageClassification", "DeiTConfig", VISION),
    ("BEiT", "vision transformer", "BeitForImageClassification", "BeitConfig", {**VISION, "drop_path_rate": 0.0}),
    ("DINOv2", "vision transformer", "Dinov2ForImageClassification", "Dinov2Config", {**VISION, "drop_path_rate": 0.0}),
    ("Swin", "vision transformer", "SwinForImageClassification", "SwinConfig", _SWIN),
    ("ConvNeXT", "convolutions", "ConvNextForImageClassification", "ConvNextConfig",
     {"hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 2, 1], "image_size": 32, "num_labels": CLASSES}),
    ("ResNet", "convolutions", "ResNetForImageClassification", "ResNetConfig", {**_RESNET, "num_labels": CLASSES}),
]  # fmt: skip

_OF_TIMM: list[tuple[str, str, str, dict[str, Any]]] = [
    ("ViT (timm)", "vision transformer", "vit_tiny_patch16_224", {**_TINY, "patch_size": 8}),
    ("DeiT-III", "vision transformer", "deit3_small_patch16_224", {**_TINY, "patch_size": 8}),
    ("CaiT", "vision transformer", "cait_xxs24_224", {**_TINY, "patch_size": 8}),
    (
        "PVT-v2",
        "vision transformer",
        "pvt_v2_b0",
        {"embed_dims": (8, 16, 32, 32), "depths": (1, 1, 1, 1), "num_heads": (1, 2, 2, 4)},
    ),
    ("ResNet-18 (timm)", "convolutions", "resnet18", {"layers": (1, 1, 1, 1), "channels": (8, 16, 32, 32)}),
    ("ConvNeXt (timm)", "convolutions", "convnext_atto", {"depths": (1, 1, 2, 1), "dims": (8, 16, 32, 32)}),
    ("MobileNetV3", "convolutions", "mobilenetv3_small_050", {}),
]


def _of_timm(name: str, options: dict[str, Any]) -> nn.Module:
    made: nn.Module = load("timm").create_model(name, pretrained=False, num_classes=CLASSES, **options)
    return made


def _mixer(**options: Any) -> nn.Module:
    made: nn.Module = load("timm.models.mlp_mixer").MlpMixer(
        num_classes=CLASSES, img_size=32, patch_size=8, num_blocks=4, embed_dim=32, **options
    )
    return made


def _residual_perceptrons() -> nn.Module:
    library = load("timm.models.mlp_mixer")
    return _mixer(mlp_ratio=4, block_layer=library.ResBlock, norm_layer=library.Affine)


def _conv_mixer() -> nn.Module:
    made: nn.Module = load("timm.models.convmixer").ConvMixer(32, 4, kernel_size=3, patch_size=4, num_classes=CLASSES)
    return made


def _of_torchvision(module: str, name: str, /, *arguments: Any, **options: Any) -> nn.Module:
    made: nn.Module = getattr(load(f"torchvision.models.{module}"), name)(*arguments, **options)
    return made


def _torch_convnext() -> nn.Module:
    setting = load("torchvision.models.convnext").CNBlockConfig
    blocks = [setting(8, 16, 1), setting(16, 32, 2), setting(32, None, 1)]
    return _of_torchvision("convnext", "ConvNeXt", blocks, stochastic_depth_prob=0.0, num_classes=CLASSES)


def _small_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
    )  # fmt: skip


def _fully_convolutional() -> nn.Module:
    head = load("torchvision.models.segmentation.fcn").FCNHead(16, CLASSES)
    backbone = load("torchvision.models._utils").IntermediateLayerGetter(_small_net(), {"5": "out"})
    return _of_torchvision("segmentation", "FCN", backbone, head)


def _deeplab() -> nn.Module:
    head = load("torchvision.models.segmentation.deeplabv3").DeepLabHead(16, CLASSES, (2, 4))
    backbone = load("torchvision.models._utils").IntermediateLayerGetter(_small_net(), {"5": "out"})
    return _of_torchvision("segmentation", "DeepLabV3", backbone, head)


def _retinanet() -> nn.Module:
    backbone = _small_net()
    backbone.out_channels = 16  # type: ignore[assignment]  # a plain attribute, which the detector reads
    anchors = load("torchvision.models.detection.anchor_utils").AnchorGenerator(((8, 16),), ((1.0,),))
    return _of_torchvision(
        "detection", "RetinaNet", backbone, CLASSES, anchor_generator=anchors, min_size=32, max_size=32
    )


def _boxed(records: int) -> Records:
    """Returns images with one box each: left, top, right, bottom in pixels."""
    corner = whole(records, 2, least=0, limit=12).double()
    return {"x": numbers(records, 3, 32, 32), "boxes": torch.cat([corner, corner + 16], 1), "classes": whole(records)}


def _detect(model: nn.Module, records: Records) -> torch.Tensor:
    targets = [
        {"boxes": box[None], "labels": label[None]}
        for box, label in zip(records["boxes"], records["classes"], strict=True)
    ]
    losses: dict[str, torch.Tensor] = model(list(records["x"]), targets)
    return torch.stack(list(losses.values())).sum()


def _centred(records: int) -> Records:
    """Returns images with one box each: its centre and size, in parts of the image."""
    box = 0.3 + 0.1 * numbers(records, 4, seed=5).tanh()
    return {"pixel_values": numbers(records, 3, 32, 32), "boxes": box, "classes": whole(records)}


def _detect_named(model: nn.Module, records: Records) -> torch.Tensor:
    labels = [
        {"boxes": box[None], "class_labels": label[None]}
        for box, label in zip(records["boxes"], records["classes"], strict=True)
    ]
    loss: torch.Tensor = model(pixel_values=records["pixel_values"], labels=labels).loss
    return loss


def _pixels(name: str, size: int, wanted: int) -> Any:
    return lambda records: {name: numbers(records, 3, size, size), "classes": whole(records, wanted, wanted)}


def _segment(model: nn.Module, records: Records) -> torch.Tensor:
    return functional.cross_entropy(main_tensor(model(records["x"])), records["classes"])


def _of_torchvision_rows() -> list[tuple[str, str, partial[nn.Module]]]:
    inverted = [[1, 8, 1, 1], [4, 16, 2, 2], [4, 24, 2, 2]]
    return [
        ("ViT (torchvision)", "vision transformer", partial(
            _of_torchvision, "vision_transformer", "VisionTransformer", 32, 8, 4, 4, 32, 64, num_classes=CLASSES)),
        ("Swin (torchvision)", "vision transformer", partial(
            _of_torchvision, "swin_transformer", "SwinTransformer", [4, 4], 16, [2, 2], [2, 4], [4, 4],
            stochastic_depth_prob=0.0, num_classes=CLASSES)),
        ("MobileNetV2", "convolutions", partial(
            _of_torchvision, "mobilenetv2", "MobileNetV2", CLASSES, 0.25, inverted)),
        ("DenseNet", "convolutions", partial(
            _of_torchvision, "densenet", "DenseNet", 4, (2, 2, 2), 8, num_classes=CLASSES)),
        ("SqueezeNet", "convolutions", partial(_of_torchvision, "squeezenet", "SqueezeNet", "1_1", CLASSES)),
        ("ShuffleNetV2", "convolutions", partial(
            _of_torchvision, "shufflenetv2", "ShuffleNetV2", [1, 2, 1], [8, 16, 32, 64, 64], CLASSES)),
        ("ConvNeXt (torchvision)", "convolutions", partial(_torch_convnext)),
    ]  # fmt: skip


def list_vision() -> list[Architecture]:
    return [
        *(Architecture(name, family, "transformers", partial(of_transformers, model, config, **options),
                       images("pixel_values"), classify_named)
          for name, family, model, config, options in _OF_TRANSFORMERS),
        *(Architecture(name, family, "timm", partial(_of_timm, model, options), images(), classify)
          for name, family, model, options in _OF_TIMM),
        Architecture("MLP-Mixer", "perceptrons", "timm", _mixer, images(), classify),
        Architecture("ResMLP", "perceptrons", "timm", _residual_perceptrons, images(), classify),
        Architecture("ConvMixer", "convolutions", "timm", _conv_mixer, images(), classify),
        *(Architecture(name, family, "torchvision", make, images(), classify)
          for name, family, make in _of_torchvision_rows()),
        Architecture("FCN", "segmentation", "torchvision", _fully_convolutional, _pixels("x", 16, 16), _segment),
        Architecture("DeepLabV3", "segmentation", "torchvision", _deeplab, _pixels("x", 16, 16), _segment),
        Architecture("SegFormer", "segmentation", "transformers",
                     partial(of_transformers, "SegformerForSemanticSegmentation", "SegformerConfig", **_SEGFORMER),
                     _pixels("pixel_values", 32, 8), classify_named),
        Architecture("RetinaNet", "detection", "torchvision", _retinanet, _boxed, _detect, has_validation=False),
        Architecture("YOLOS", "detection", "transformers",
                     partial(of_transformers, "YolosForObjectDetection", "YolosConfig",
                             **{**VISION, "image_size": [32, 32], "num_detection_tokens": 5}),
                     _centred, _detect_named, number_type=torch.float32, tolerance=SINGLE),
    ]  # fmt: skip
