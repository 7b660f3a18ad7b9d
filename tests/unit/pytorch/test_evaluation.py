"""How the values of validation batches become one metric, on one rank and on several."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gangline import pytorch
from gangline.core import DistributedContext
from gangline.errors import GanglineError
from gangline.pytorch import Reducer
from gangline.pytorch.metric import MetricReduction, ValidationMetrics
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
        found = ValidationMetrics(_BY_METRIC)
        for number in range(3):
            value = torch.tensor(float(3 * distributed.rank + number))
            found.add(dict.fromkeys([*_BY_METRIC, "unnamed"], value), records=1 + distributed.rank)
        return found.combine(distributed.allgather(found.totals()))

    expected = {"mean": 3.0, "sum": 15.0, "max": 5.0, "min": 0.0, "median": 3.0, "unnamed": 3.0}
    assert in_ranks(2, work) == [expected, expected]


def test_one_function_reduces_all_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    class Ranged(SmallTrial):
        def evaluation_reducer(self) -> Any:
            return lambda values: max(values) - min(values)

        def evaluate_batch(self, batch: Any) -> dict[str, Any]:  # type: ignore[override]  # without the index
            return {"records": len(batch[0])}

    fit(Ranged, max_length=pytorch.Batch(1))
    assert "records 3" in capsys.readouterr().out


@pytest.mark.parametrize("reducer", ["mean", {"error": 3}])
def test_what_is_no_reducer_is_refused(reducer: Any) -> None:
    class Wrong(SmallTrial):
        def evaluation_reducer(self) -> Any:
            return reducer

    with pytest.raises(GanglineError, match=r"evaluation_reducer returned ('mean'|3); use Reducer\.AVG, SUM, MAX"):
        fit(Wrong, max_length=pytorch.Batch(1))


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
