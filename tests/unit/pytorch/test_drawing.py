"""Numbers of the random numbers that a pipeline's parts draw alike, which leave the rank's own generators alone."""

from __future__ import annotations

import torch

from gangline.pytorch.parallel.staged.cutting.drawing import DrawNumbers


def test_numbers_leave_the_own_generator_where_it_is() -> None:
    before = torch.get_rng_state()
    numbers = DrawNumbers(7)
    drawn = [numbers.draw() for _ in range(4)]
    assert torch.equal(torch.get_rng_state(), before)
    assert len(set(drawn)) == 4
    assert [DrawNumbers(7).draw(), DrawNumbers(8).draw()] != drawn[:2]


def test_ranks_with_one_seed_draw_alike_whatever_else_they_draw() -> None:
    first, second = DrawNumbers(7), DrawNumbers(7)
    torch.rand(3)
    assert [first.draw() for _ in range(3)] == [second.draw() for _ in range(3)]


def test_numbers_go_on_from_a_checkpoint() -> None:
    numbers = DrawNumbers(7)
    numbers.draw()
    state = numbers.capture()
    expected = [numbers.draw() for _ in range(3)]
    resumed = DrawNumbers(9)
    resumed.restore(state)
    assert [resumed.draw() for _ in range(3)] == expected
