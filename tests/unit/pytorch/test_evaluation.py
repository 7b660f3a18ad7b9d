"""How the values of validation batches become one metric, on one rank and on several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import TensorDataset

from gangline import pytorch
from gangline.core import DistributedContext
from gangline.errors import GanglineError
from gangline.pytorch import Reducer
from gangline.pytorch.metrics.metric import MetricReduction, ValidationMetrics
from tests.support.small_trial import SmallTrial, fit
from tests.support.world import in_ranks


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


_BY_METRIC: dict[str, MetricReduction] = {
    "mean": Reducer.AVG,
    "sum": Reducer.SUM,
    "max": Reducer.MAX,
    "min": Reducer.MIN,
    "median": _median,
}


def test_each_metric_has_its_own_reduction_over_ranks() -> None:
    def work(distributed: DistributedContext) -> dict[str, float]:
        metrics = ValidationMetrics(_BY_METRIC)
        for number in range(3):
            value = torch.tensor(float(3 * distributed.rank + number))
            metrics.add(dict.fromkeys(_BY_METRIC, value), records=1 + distributed.rank)
        return metrics.combine(distributed.allgather(metrics.totals()))

    expected = {"mean": 3.0, "sum": 15.0, "max": 5.0, "min": 0.0, "median": 3.0}
    assert in_ranks(2, work) == [expected, expected]


def test_one_function_reduces_all_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    class Ranged(SmallTrial):
        def evaluation_reducer(self) -> Any:
            return lambda values: max(values) - min(values)

        def evaluate_batch(self, batch: Any) -> dict[str, Any]:  # type: ignore[override]  # without the index
            return {"records": len(batch[0])}

    fit(Ranged, max_length=pytorch.Batch(1))
    assert "records 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["error"], "lacks the metric 'records'"),
        (["error", "records", "recall"], "has 'recall', which evaluate_batch does not return as a number"),
        (["error", "records", "output"], "has 'output', which evaluate_batch does not return as a number"),
    ],
)
def test_a_dictionary_of_reducers_has_the_names_of_the_metrics(names: list[str], told: str) -> None:
    class Named(SmallTrial):
        def evaluation_reducer(self) -> Any:
            return dict.fromkeys(names, pytorch.Reducer.AVG)

        def evaluate_batch(self, batch: Any) -> dict[str, Any]:  # type: ignore[override]  # without the index
            return {"error": 1.0, "records": len(batch[0]), "output": self.model(batch[0])}

    with pytest.raises(GanglineError, match=f"the dictionary of evaluation_reducer {told}; give one"):
        fit(Named, max_length=pytorch.Batch(1))


@pytest.mark.parametrize("reducer", ["mean", {"error": 3}])
def test_what_is_no_reducer_is_refused(reducer: Any) -> None:
    class Wrong(SmallTrial):
        def evaluation_reducer(self) -> Any:
            return reducer

    with pytest.raises(GanglineError, match=r"evaluation_reducer returned ('mean'|3); use Reducer\.AVG, SUM, MAX"):
        fit(Wrong, max_length=pytorch.Batch(1))


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (True, "lacks the metric 'x', the batches before it do;"),
        (False, "has the metric 'x', the batches before it do not;"),
    ],
)
def test_batches_have_the_same_metrics(first: bool, words: str) -> None:
    class Changing(SmallTrial):
        def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:  # type: ignore[override]  # with it
            return {"error": 1.0, **({"x": 2.0} if (batch_idx == 0) is first else {})}

    with pytest.raises(GanglineError, match=f"evaluate_batch: batch 1 of this rank {words}"):
        fit(Changing, max_length=pytorch.Batch(1))


@pytest.mark.parametrize("is_foreign", [False, True])
def test_validation_without_data_is_refused(is_foreign: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty(SmallTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            context.experimental.disable_dataset_reproducibility_checks()

        def build_validation_data_loader(self) -> Any:
            rows = TensorDataset(torch.zeros(3, 1))
            return (TorchLoader if is_foreign else pytorch.DataLoader)(rows, batch_size=4, drop_last=True)

    monkeypatch.chdir(tmp_path)
    with pytest.raises(GanglineError) as caught:
        fit(Empty, max_length=pytorch.Batch(2))
    assert caught.value.code == "pytorch.no_validation_data"
    assert caught.value.message == (
        "the loader of build_validation_data_loader has no batch on any rank, so a validation would say nothing; "
        "give it records, or leave out drop_last where they are fewer than one batch"
    )


def test_arrays_in_batches_become_tensors() -> None:
    class Arrays(SmallTrial):
        def build_validation_data_loader(self) -> pytorch.DataLoader:
            return pytorch.DataLoader(
                [1.0, 2.0, 3.0],  # type: ignore[arg-type]  # a list is a dataset, too
                batch_size=3,
                collate_fn=lambda rows: {"x": torch.tensor(rows).numpy(), "names": ["a", "b", "c"]},
            )

        def evaluate_batch(self, batch: Any) -> dict[str, Any]:  # type: ignore[override]  # without the index
            assert batch["names"] == ["a", "b", "c"]
            return {"total": batch["x"].sum()}

    fit(Arrays, max_length=pytorch.Batch(1))
