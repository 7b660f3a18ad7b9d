"""The table of metrics, and the message where pandas is missing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from gangline.client.optional import load_trial, make_frame
from gangline.domain.history import MetricsPoint, StoredMetrics
from gangline.errors import GanglineError

# Found and not imported, which takes a second in each process that only lists the tests.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is missing")


def entry(number: int, group: str, batches: int, **metrics: float) -> StoredMetrics:
    return StoredMetrics(number, "7.1", 1000.0 + number, MetricsPoint(group, batches, metrics))


def test_each_report_is_a_row_and_each_metric_a_column() -> None:
    frame = make_frame([entry(1, "training", 10, loss=0.5), entry(2, "validation", 10, accuracy=0.9, at=3.0)])
    assert list(frame.columns) == [
        "trial_id",
        "group",
        "batches_completed",
        "attempt",
        "at",
        "loss",
        "accuracy",
        "metric_at",
    ]
    assert list(frame["group"]) == ["training", "validation"]
    assert frame["loss"].tolist()[0] == 0.5
    assert frame["loss"].isna().tolist() == [False, True]
    assert frame["metric_at"].tolist()[1] == 3.0
    assert frame["at"][0].isoformat() == "1970-01-01T00:16:41+00:00"
    assert str(frame["loss"].dtype) == str(frame["accuracy"].dtype) == "float64"


def test_a_metric_that_is_no_number_is_a_column_of_objects() -> None:
    noted = StoredMetrics(1, "7.1", 1.0, MetricsPoint("training", 1, {"loss": 0.5}, '{"note": "a", "loss": [1]}'))
    frame = make_frame([noted, entry(2, "training", 2, loss=0.25)])
    assert frame["loss"].tolist() == [0.5, 0.25]
    assert frame["note"].tolist() == ["a", None]
    assert frame["value_loss"].tolist() == [[1], None]


def test_no_report_makes_an_empty_table_with_the_fixed_columns() -> None:
    frame = make_frame([])
    assert (len(frame), list(frame.columns)) == (0, ["trial_id", "group", "batches_completed", "attempt", "at"])


def test_missing_pandas_is_said_before_anything_is_read() -> None:
    program = """
import sys
sys.modules["pandas"] = None
from gangline.client import MetricsReader
from gangline.errors import GanglineError
def entries():
    raise AssertionError("was read")
    yield
try:
    MetricsReader(entries()).to_pandas()
except GanglineError as error:
    print(error.code, error.message, sep="|")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    code, message = done.stdout.strip().split("|")
    assert code == "client.no_pandas"
    advice = "pip install 'gangline[pandas]' (docs/install.md says from where), or read the entries one by one"
    assert message.endswith(f"install it with: {advice}")


def test_trial_class_must_be_one(tmp_path: object) -> None:
    with pytest.raises(GanglineError) as caught:
        load_trial(tmp_path, dict, None, {})  # type: ignore[arg-type]  # not reached
    assert caught.value.code == "checkpoint.no_code"
