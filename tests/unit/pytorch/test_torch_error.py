"""Errors of torch are explained in the words of the trial's strategy."""

from __future__ import annotations

from gangline.pytorch.data.torch_error import explain

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
