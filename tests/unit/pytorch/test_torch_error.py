"""Errors of torch are explained in the words of the trial's strategy."""

from __future__ import annotations

import torch

from gangline.pytorch.data.torch_error import explain, explain_step

_FREED = RuntimeError("Trying to backward through the graph a second time (or directly access saved tensors)")


def test_a_freed_graph_is_another_mistake_in_a_pipeline() -> None:
    whole, stage = explain(_FREED, "zero3"), explain(_FREED, "pipeline")
    assert whole is not None
    assert whole.message.endswith("or pass retain_graph=True to all but the last one")
    assert stage is not None
    assert (whole.code, stage.code) == ("pytorch.graph_used",) * 2
    assert "use another schedule than ZBVZeroBubble" in stage.message


def test_words_of_one_family_mean_nothing_to_another() -> None:
    text = RuntimeError("One of the tensors appears to not have been used in the graph")
    assert explain(text, "ddp") is None
    assert "leaves each stage the graph of its own units" in str(explain(text, "pipeline"))
    assert "divides parameters" in str(explain(text, "zero2"))


def test_an_optimizer_that_cannot_step_parts_is_named() -> None:
    error = RuntimeError("Operator aten._fused_sgd_.default does not have a sharding strategy registered.")
    weight = [torch.nn.Parameter(torch.zeros(1))]
    fused, plain = torch.optim.SGD(weight, lr=0.1), torch.optim.Rprop(weight)
    fused.defaults["fused"] = True
    start = "zero3 divides parameters over ranks, and torch cannot run the step of "
    assert str(explain_step(error, fused, "zero3")) == (
        f"{start}SGD with fused=True on parts of them; leave fused=True out, or use ddp or zero1"
    )
    assert str(explain_step(error, plain, "zero3")) == (
        f"{start}Rprop on parts of them; use another optimizer, or use ddp or zero1"
    )
    assert explain_step(RuntimeError("of the trial's own"), plain, "zero3") is None
    assert "read whole values from tensor.full_tensor()" in str(explain(error, "zero3"))
