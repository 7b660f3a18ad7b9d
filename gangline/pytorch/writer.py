"""The documented place of TorchWriter; `gangline.pytorch.trial.tensorboard_writer` has the code."""

from gangline.pytorch.trial.tensorboard_writer import TorchWriter

__all__ = ["TorchWriter"]
