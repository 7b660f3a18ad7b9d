"""PURE: explains torch's errors to a user, where torch's message names its own internals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gangline.errors import GanglineError, invalid

# Text in torch's message, the code of the GanglineError, and its message.
_MEANINGS = (
    (
        "mark a variable ready only once",
        "pytorch.two_backwards",
        "backward reached a parameter twice in one pass, and its gradient had gone to the other ranks already; use "
        "each wrapped model once in a loss and call context.backward once for it",
    ),
    (
        "Expected to have finished reduction in the prior iteration",
        "pytorch.unused_parameters",
        "some parameters took no part in the last loss, so their gradients never came; freeze them, add losses "
        "up for one context.backward, or set parallelism: {{strategy: {strategy}, find_unused_parameters: true}}",
    ),
    (
        "SparseTensorImpl",
        "pytorch.sparse_gradient",
        "a parameter has a sparse gradient that no module has announced, so {strategy} cannot exchange it; use "
        "torch.nn.Embedding(sparse=True) in the place of a function with sparse=True, or leave sparse=True out",
    ),
    (
        "mixed torch.Tensor and DTensor",
        "pytorch.shard_used",
        "a parameter was used while only this rank's part of it is here; call the wrapped model itself, not methods or "
        "layers of it, and compute penalties on weights in its forward pass, or set parallelism.blocks to [] so that "
        "the whole model is gathered at once",
    ),
    (
        "out of bounds for storage of size 0",
        "pytorch.parameters_gone",
        "a backward pass needed whole parameters that were given up already; add losses up for one context.backward, "
        "or use ddp or zero1",
    ),
    (
        "Trying to backward through the graph a second time",
        "pytorch.graph_used",
        "a second backward pass went through a graph that the first one has freed; add losses up for one "
        "context.backward, or pass retain_graph=True to all but the last one",
    ),
    (
        "SyncBatchNorm expected input tensor to be on GPU",
        "parallelism.batch_norm",
        "a SyncBatchNorm layer was put into the model after it was wrapped, so it runs on GPUs only; call "
        "torch.nn.SyncBatchNorm.convert_sync_batchnorm before context.wrap_model",
    ),
)
_PART_OPERATION = (
    "parallelism.part_operation",
    "{strategy} divides parameters and gradients over ranks, and torch cannot do one of the trial's operations on "
    "parts of them; use another operation, read whole values from tensor.full_tensor() on all ranks, set values with "
    "load_state_dict, or use ddp or zero1",
)
# Strategies to which the second table applies: they divide tensors over ranks.
_DIVIDES_TENSORS = ("zero2", "zero3", "hsdp")
_MEANINGS_OF_SHARDS = (
    (
        "SparseCPU",
        "pytorch.sparse_gradient",
        "a parameter has a sparse gradient, which {strategy} cannot divide; leave sparse=True out, or use ddp or zero1",
    ),
    (
        "SparseCUDA",
        "pytorch.sparse_gradient",
        "a parameter has a sparse gradient, which {strategy} cannot divide; leave sparse=True out, or use ddp or zero1",
    ),
    (
        "appears to not have been used in the graph",
        "parallelism.own_gradients",
        "torch.autograd.grad was called for a tensor that took no part in its graph; {strategy} divides parameters, so "
        "only context.backward makes their gradients; call that, or use ddp or zero1",
    ),
    ("does not have a sharding strategy registered", *_PART_OPERATION),
    ("Sharding propagation failed", *_PART_OPERATION),
    ("not supported with DTensor", *_PART_OPERATION),
    ("is not supported for tensor subclasses", *_PART_OPERATION),
)

# As for the strategies that divide tensors: a stage has the graph of its own units alone. These come first, because a
# pipeline refuses a second context.backward by itself.
_MEANINGS_OF_STAGES = (
    (
        "Trying to backward through the graph a second time",
        "pytorch.graph_used",
        "a stage's backward pass went through a graph that another one has freed; detach what a module keeps from call "
        "to call, and use another schedule than ZBVZeroBubble, whose backward pass has two parts, for modules that "
        "call torch.autograd.grad with create_graph",
    ),
    (
        "appears to not have been used in the graph",
        "parallelism.own_gradients",
        "torch.autograd.grad was called for a tensor that took no part in its graph; {strategy} leaves each stage the "
        "graph of its own units, so call it inside of the forward of a unit, which returns what the loss needs, or use "
        "ddp",
    ),
)


def unused_parameters(model: str, names: Sequence[str], strategy: str) -> GanglineError:
    """Returns the error for parameters that a backward pass has not reached. names: of these parameters of a wrapped
    model."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return invalid(
        "pytorch.unused_parameters",
        f"{', '.join(names[:3])}{more} of {model} took no part in the loss, so their gradients never came; freeze "
        "them, add losses up where train_batch calls context.backward several times, or set parallelism: "
        f"{{strategy: {strategy}, find_unused_parameters: true}}",
    )


def explain(error: BaseException, strategy: str) -> GanglineError | None:
    """Returns a GanglineError that explains an error of torch; None where torch's own message is as good. strategy: the
    trial's."""
    text = str(error)
    of_stages = _MEANINGS_OF_STAGES if strategy == "pipeline" else ()
    of_shards = _MEANINGS_OF_SHARDS if strategy in _DIVIDES_TENSORS else ()
    for words, code, meaning in (*of_stages, *_MEANINGS, *of_shards):
        if words in text:
            return invalid(code, meaning.format(strategy=strategy))
    return None


def explain_step(error: BaseException, optimizer: Any, strategy: str) -> GanglineError | None:
    """Returns a GanglineError for an error of torch in an optimizer's step; None where `explain` says nothing better
    about one in the trial's own code."""
    meaning = explain(error, strategy)
    if meaning is None or meaning.code != _PART_OPERATION[0]:
        return meaning
    is_fused = bool(getattr(optimizer, "defaults", {}).get("fused"))
    kind = f"{type(optimizer).__name__}{' with fused=True' if is_fused else ''}"
    advice = "leave fused=True out" if is_fused else "use another optimizer"
    return invalid(
        "parallelism.optimizer",
        f"{strategy} divides parameters over ranks, and torch cannot run the step of {kind} on parts of them; "
        f"{advice}, or use ddp or zero1",
    )
