"""The changes that a live experiment's resources allow, and one line for each change that they do not allow."""

from __future__ import annotations

import math

import pytest

from gangline.config import check_resource_change
from gangline.domain.experiment import ResourceChange
from gangline.errors import GanglineError


@pytest.mark.parametrize(
    "change",
    [
        ResourceChange(priority=1),
        ResourceChange(priority=99),
        ResourceChange(weight=0.0),
        ResourceChange(weight=0.5),
        ResourceChange(max_slots=0),
        ResourceChange(42, 2.0, 8),
        ResourceChange(max_slots=8, when_free=True),
    ],
)
def test_what_may_be_changed(change: ResourceChange) -> None:
    check_resource_change(change)


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (ResourceChange(), "resources.nothing", "nothing is to be changed; give a priority, a weight or max_slots"),
        (
            ResourceChange(priority=0),
            "resources.priority",
            "priority 0 is out of range; give 1 (most urgent) to 99",
        ),
        (
            ResourceChange(priority=100, weight=1),
            "resources.priority",
            "priority 100 is out of range; give 1 (most urgent) to 99",
        ),
        (ResourceChange(weight=-0.5), "resources.weight", "weight -0.5 is out of range; give 0 or more"),
        (ResourceChange(weight=math.inf), "resources.weight", "weight inf is out of range; give 0 or more"),
        (ResourceChange(weight=math.nan), "resources.weight", "weight nan is out of range; give 0 or more"),
        (
            ResourceChange(max_slots=-1),
            "resources.max_slots",
            "max_slots -1 is out of range; give a number of slots, 0 for no cap",
        ),
        (
            ResourceChange(when_free=True),
            "resources.nothing",
            "nothing is to be changed; give a priority, a weight or max_slots",
        ),
        (
            ResourceChange(priority=3, when_free=True),
            "resources.when_free",
            "'when free' says how a lower max_slots takes effect; give it together with max_slots of 1 or more",
        ),
    ],
)
def test_what_may_not(change: ResourceChange, code: str, message: str) -> None:
    with pytest.raises(GanglineError) as caught:
        check_resource_change(change)
    assert (caught.value.code, caught.value.message) == (code, message)
