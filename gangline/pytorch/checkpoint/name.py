"""Names of a trial's tensors in a checkpoint. They are the same for every strategy.

A model's tensor is models_state_dict.<model>.<its name in the model>. A tensor of an optimizer's state is
optimizers_state_dict.<optimizer>.state.<model>.<parameter>.<its name in the state>. Names are those of the model before
torch.compile, so a checkpoint fits the model with and without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn
from torch.optim import Optimizer

from gangline.pytorch.parallel.shared.ownership import plain_name

MODELS = "models_state_dict"
OPTIMIZERS = "optimizers_state_dict"
STATE = "state"
Path = tuple[str | int, ...]


def model_path(model: int, name: str) -> Path:
    return (MODELS, model, name)


def state_path(optimizer: int, parameter: str, name: str) -> Path:
    return (OPTIMIZERS, optimizer, STATE, parameter, name)


def join(path: Path) -> str:
    """Joins a path as torch.distributed.checkpoint joins the keys of nested dictionaries and lists."""
    return ".".join(map(str, path))


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """Returns the parameters in the order in which an optimizer's state_dict counts them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def name_parameters(models: Sequence[nn.Module], optimizers: Iterable[Optimizer]) -> dict[int, str]:
    """Returns id of each parameter -> its name. Parameters of no wrapped model are named by their place in the
    optimizer."""
    names = {
        id(parameter): f"{index}.{plain_name(name)}"
        for index, model in reversed(list(enumerate(models)))
        for name, parameter in model.named_parameters()
    }
    for number, optimizer in enumerate(optimizers):
        for position, parameter in enumerate(parameters_of(optimizer)):
            names.setdefault(id(parameter), f"unwrapped.{number}.{position}")
    return names
