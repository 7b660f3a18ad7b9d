"""Parameters that forward passes use in half precision are gathered in it: with half of the bytes, and with the same
losses and parameters bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support import half_work as work
from tests.support.gang import run_gang
from tests.support.once import make_once

Trained = list[tuple[dict[tuple[str, str, bool], work.Outcome], str]]


def _train(directory: Path) -> Trained:
    return run_gang(2, directory, work.train_all)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return make_once(tmp_path_factory, "half_gathering", _train)


@pytest.mark.parametrize(("kind", "strategy"), work.PLACES)
def test_losses_and_parameters_are_the_same_bit_for_bit(trained: Trained, kind: str, strategy: str) -> None:
    for outcomes, _ in trained:
        full, half = outcomes[kind, strategy, False], outcomes[kind, strategy, True]
        assert half.losses == full.losses
        assert half.model.keys() == full.model.keys()
        assert all(torch.equal(value, half.model[name]) for name, value in full.model.items())


@pytest.mark.parametrize(("strategy", "kind"), [("zero2", "plain"), ("zero3", "plain")])
def test_gatherings_have_half_of_the_bytes_from_the_second_step_on(trained: Trained, strategy: str, kind: str) -> None:
    """Norms, the own parameter of a block and the tokens, which are looked up in full precision, keep their bytes."""
    net = work.Net()
    names = ("tokens", "norm", "scale")
    others = sum(value.nbytes for name, value in net.named_parameters() if any(word in name for word in names))
    halved = sum(value.nbytes for name, value in net.named_parameters()) - others
    for outcomes, _ in trained:
        full, half = outcomes[kind, strategy, False].gathered, outcomes[kind, strategy, True].gathered
        assert half[0] == full[0]
        assert half[1:] == [half[1]] * (work.STEPS - 1)
        expected = (halved / 2 + others) / (halved + others)
        # Parts are padded, and blocks are gathered twice.
        assert half[1] / full[1] == pytest.approx(expected, abs=0.03)


def test_a_parameter_that_is_needed_in_its_own_type_later_is_gathered_so_again(trained: Trained) -> None:
    for outcomes, _ in trained:
        gathered, plain = (outcomes[kind, "zero3", True].gathered for kind in ("penalised", "plain"))
        assert gathered[1:3] == plain[1:3]
        assert plain[3] < gathered[4] == gathered[5] < plain[0], "one parameter in its own type"
        assert gathered[4] < gathered[3], "where it was first needed it was gathered in both types"


def test_a_change_in_place_is_refused_as_before(trained: Trained) -> None:
    for _, refusal in trained:
        assert refusal.startswith("3: parallelism.whole_changed: Net.stem.weight was changed in place")
