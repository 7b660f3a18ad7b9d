"""The memory model: formulas for each strategy and for stages, against worked examples and hand-computed numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.pytorch.plan.memory import slot_memory
from gangline.pytorch.plan.model_size import Connection, ModelSize, Moment, UnitSize
from gangline.pytorch.plan.stages import Pipeline, border_bytes, carried_bytes, stage_memory, stage_units
from gangline.pytorch.plan.step_time import copied_bytes, sent_bytes

_E9 = 1e9


def _gb(parameters: float, strategy: str, slots: int, shards: int | None = None) -> float:
    # With activations of 2 GB, which are apart in these examples.
    model = ModelSize(round(parameters * _E9), largest_block=0, activation_bytes=2 * _E9)
    return slot_memory(model, strategy, slots, 1, shards).total / _E9 - 2


@pytest.mark.parametrize(
    ("parameters", "slots", "expected"),
    [
        (0.35, 4, [5.6, 3.5, 2.8, 1.4]),
        (1.0, 4, [16.0, 10.0, 8.0, 4.0]),
        (1.5, 4, [24.0, 15.0, 12.0, 6.0]),
        (2.7, 4, [43.2, 27.0, 21.6, 10.8]),
        (2.7, 8, [43.2, 24.3, 16.2, 5.4]),
        (5.0, 8, [80.0, 45.0, 30.0, 10.0]),
        (7.5, 8, [120.0, 67.5, 45.0, 15.0]),
    ],
)
def test_worked_examples(parameters: float, slots: int, expected: list[float]) -> None:
    """fp32 with AdamW and small blocks, in 10^9 bytes: ddp, zero1, zero2, zero3."""
    found = [_gb(parameters, name, slots) for name in ("ddp", "zero1", "zero2", "zero3")]
    assert found == pytest.approx(expected)


def test_hsdp_divides_among_the_slots_of_a_machine() -> None:
    assert _gb(2.7, "hsdp", 8, shards=4) == pytest.approx(10.8)


def test_each_kind_of_bytes() -> None:
    """SGD with momentum in bf16 of 1000 parameters, of which a block has 300, over 4 slots."""
    model = ModelSize(1000, 300, stored=4, gradient=4, optimizer=4, computed=2, activation_bytes=10)
    zero2, zero3 = (slot_memory(model, name, 4, 8) for name in ("zero2", "zero3"))
    assert (zero3.parameters, zero3.gradients, zero3.optimizer, zero3.activations) == (1000, 1000, 1000, 80)
    assert zero3.transient == 2 * 2 * 300 + 4 * 300
    assert zero2.transient == 2 * 1000 + 4 * 300
    ddp, zero1 = (slot_memory(model, name, 4, 8) for name in ("ddp", "zero1"))
    assert (ddp.parameters, ddp.gradients, ddp.optimizer, ddp.transient) == (4000, 4000, 4000, 0)
    assert (zero1.parameters, zero1.gradients, zero1.optimizer) == (4000, 4000, 1000)


def test_zero1_gives_each_tensor_to_one_slot() -> None:
    """Three tensors of 400, 300 and 300 numbers on two slots: one slot owns 600."""
    model = ModelSize(1000, 300, tensors=(400, 300, 300))
    memory = slot_memory(model, "zero1", 2, 1)
    assert (memory.parameters, memory.gradients, memory.optimizer) == (4000, 4000, 8 * 600)
    assert slot_memory(model, "zero1", 8, 1).optimizer == 8 * 400


def test_gathered_groups_are_never_more_than_the_model() -> None:
    """A model without blocks is one group, which cannot be there twice."""
    assert slot_memory(ModelSize(1000, 1000), "zero3", 4, 1).transient == 4 * 1000 + 4 * 1000


def test_a_stage_has_its_units_and_the_microbatches_in_flight() -> None:
    units = tuple(UnitSize(name, numel, activation_bytes=5) for name, numel in (("a", 10), ("b", 20), ("c", 30)))
    model = ModelSize(60, 30, units=units)
    first, last = stage_memory(model, Pipeline((2, 1), 2, "1F1B", 4, 8))
    assert (first.parameters, first.gradients, first.optimizer) == (120, 120, 240)
    assert (last.parameters, last.gradients, last.optimizer) == (120, 120, 240)
    # Two records a microbatch; the first slot keeps two microbatches of two units, the last one microbatch of one.
    assert (first.activations, last.activations) == (2 * 2 * 10, 2 * 5)
    first, last = stage_memory(model, Pipeline((2, 1), 2, "GPipe", 4, 8))
    assert (first.activations, last.activations) == (8 * 10, 8 * 5)


def test_copies_in_half_precision_do_not_grow_with_the_batch() -> None:
    moments = (Moment(10, 0.0, 600), Moment(2, 1.0, 5))
    model = ModelSize(100, 10, moments=moments)
    # Of 400 bytes of gradients none is there at the first moment.
    assert slot_memory(model, "none", 1, 8).activations == 8 * 10 + 600 - 400
    assert slot_memory(model, "ddp", 2, 8).activations == 8 * 10 + 600
    assert slot_memory(ModelSize(100, 10, activation_bytes=3, copied_bytes=50), "none", 1, 8).activations == 8 * 3 + 50
    # The microbatches of a stage have them together.
    units = tuple(UnitSize(name, 10, activation_bytes=5, copied_bytes=20) for name in "abc")
    first, last = stage_memory(ModelSize(30, 10, units=units), Pipeline((2, 1), 2, "1F1B", 4, 8))
    assert (first.activations, last.activations) == (2 * 2 * 10 + 2 * 20, 2 * 5 + 20)


def test_replicas_that_divide_the_step() -> None:
    """Tensors of 8, 4 and 4 numbers have one owner each, so both of two replicas own 8 of 16, and one of three 8."""
    units = (UnitSize("a", 16, activation_bytes=5, tensors=(8, 4, 4)), UnitSize("b", 10))
    model = ModelSize(26, 16, units=units, step_bytes=4)
    for replicas, owned in ((2, 8), (3, 8)):
        first, last = stage_memory(model, Pipeline((1, 1), 2, "1F1B", 4, 8, replicas, is_divided=True))
        assert (first.parameters, first.gradients, first.optimizer) == (4 * 16, 4 * owned, 8 * owned)
        # The other gradients are whole until the replicas join them.
        assert first.transient == 4 * (16 - owned)
        # A message of the owner's gradients, above the 2 x 2 x 5 of the microbatches.
        assert first.activations == 4 * owned
        # Without known tensors the shares are equal.
        assert last.optimizer == pytest.approx(8 * 10 / replicas)
    whole = stage_memory(model, Pipeline((1, 1), 2, "1F1B", 4, 8, replicas=2))[0]
    assert (whole.gradients, whole.optimizer, whole.transient) == (4 * 16, 8 * 16, 0)


def test_schedules_with_two_parts_in_each_slot() -> None:
    units = tuple(UnitSize(str(number), number) for number in range(4))
    model = ModelSize(6, 3, units=units)
    found = {
        name: [[unit.name for unit in slot] for slot in stage_units(model, Pipeline((1, 1, 1, 1), 2, name, 4, 4))]
        for name in ("Interleaved1F1B", "ZBVZeroBubble")
    }
    assert found == {"Interleaved1F1B": [["0", "2"], ["1", "3"]], "ZBVZeroBubble": [["0", "3"], ["1", "2"]]}


def test_microbatches_in_flight() -> None:
    pipeline = Pipeline((1, 1, 1, 1), 4, "1F1B", 8, 8)
    assert [pipeline.in_flight(slot) for slot in range(4)] == [4, 3, 2, 1]
    assert replace(pipeline, microbatches=2).in_flight(0) == 2
    assert replace(pipeline, schedule="GPipe").in_flight(3) == 8


def _skipping(*connections: Connection) -> ModelSize:
    """Six units without parameters that give each other 10 bytes a record."""
    return ModelSize(0, 0, units=tuple(UnitSize(str(place), 0, 0, 10) for place in range(6)), connections=connections)


def _cut(*counts: int) -> Pipeline:
    return Pipeline(counts, len(counts), "1F1B", 6, 12)


def test_bytes_carried_over_borders() -> None:
    """Unit 0 reaches unit 5 and unit 1 reaches unit 3."""
    model = _skipping(Connection("a", 100, 0, 1, 5), Connection("b", 7, 1, 2, 3))
    assert carried_bytes(model, _cut(2, 2, 2)) == [100, 100]
    assert carried_bytes(model, _cut(3, 3)) == [107]
    # The output of unit 0 crosses the border behind it as the part's output.
    assert carried_bytes(model, _cut(1, 4, 1)) == [0, 100]
    assert carried_bytes(model, _cut(6)) == []
    assert carried_bytes(_skipping(), _cut(2, 2, 2)) == [0, 0]
    assert border_bytes(model, _cut(2, 2, 2)) == [110, 110]


def test_slots_keep_what_they_receive_pass_on_and_make() -> None:
    """Three stages of 1F1B with 6 microbatches of 2 records."""
    plain, skipping = (
        stage_memory(model, _cut(2, 2, 2)) for model in (_skipping(), _skipping(Connection("a", 100, 0, 1, 5)))
    )
    # Buffers for all records: of gradients, of both, of outputs.
    assert [more.transient - less.transient for more, less in zip(skipping, plain, strict=True)] == [1200, 2400, 1200]
    # The first stage keeps its output for 3 microbatches in flight, and the second one the copies that it passes on.
    assert [memory.activations for memory in skipping] == [3 * 200, 2 * 200, 0]
    # An output that the first stage's units keep anyway is no more; one that a later stage keeps is.
    for keeper, first in ((1, 0), (3, 600)):
        kept = stage_memory(_skipping(Connection("a", 100, 0, 1, 5, keeper)), _cut(2, 2, 2))
        assert [memory.activations for memory in kept] == [first, 400, 0]


def test_parts_of_one_slot_need_no_buffers_between_them() -> None:
    """ZBVZeroBubble: parts 1 and 2 are on the second slot."""
    model = _skipping(Connection("a", 100, 2, 3, 4))
    pipeline = Pipeline((1, 3, 1, 1), 2, "ZBVZeroBubble", 4, 4)
    memories, plain = stage_memory(model, pipeline), stage_memory(_skipping(), pipeline)
    assert [memory.transient for memory in memories] == [memory.transient for memory in plain]
    assert [memory.activations for memory in memories] == [0, 400]


def test_an_output_counts_once_on_each_side_of_a_border() -> None:
    """With 1F1B the first of two slots has 2 microbatches of 2 records in flight. Its part does not keep the output, so
    the slot has 40 bytes of it. The other part keeps its input, which is in the buffer. Both slots have the batch."""
    plain = (UnitSize("a", 0, 50, 10), UnitSize("b", 0, 30, 10))
    passing = (replace(plain[0], passed_bytes=10), replace(plain[1], taken_bytes=10))
    for schedule, flying in (("1F1B", (2, 1)), ("GPipe", (4, 4))):
        pipeline = Pipeline((1, 1), 2, schedule, 4, 8)
        less, more = (stage_memory(ModelSize(0, 0, units=units), pipeline) for units in (plain, passing))
        assert more[0].activations - less[0].activations == flying[0] * 2 * 10
        assert more[1].activations - less[1].activations == -flying[1] * 2 * 10
        batch = stage_memory(ModelSize(0, 0, units=plain, batch_bytes=7), pipeline)
        assert [each.activations - old.activations for each, old in zip(batch, less, strict=True)] == [8 * 7, 8 * 7]


def test_an_output_that_the_next_part_of_the_slot_keeps_counts_once() -> None:
    """ZBVZeroBubble: parts 1 and 2 are on the second slot."""
    plain = tuple(UnitSize(name, 0, 30, 10) for name in "abcd")
    passing = (plain[0], replace(plain[1], passed_bytes=10), replace(plain[2], taken_bytes=10), plain[3])
    pipeline = Pipeline((1, 1, 1, 1), 2, "ZBVZeroBubble", 4, 8)
    less, more = (stage_memory(ModelSize(0, 0, units=units), pipeline) for units in (plain, passing))
    assert more == less


def test_without_a_measured_backward_pass_the_batch_counts_as_well() -> None:
    model = ModelSize(0, 0, activation_bytes=5, batch_bytes=2)
    assert slot_memory(model, "ddp", 2, 10).activations == 70


def test_messages_have_half_of_what_is_used_in_half_precision_and_the_memory_all_of_the_first_step() -> None:
    """600 of 1000 parameters of 4 bytes are copied by autocast."""
    full = ModelSize(1000, 100)
    half = replace(full, copied_bytes=1200.0)
    assert (full.sent, half.sent) == (4.0, 2.8)
    # A part of a parameter for each copy at most, however often a pass makes one.
    assert replace(full, copied_bytes=9000.0).sent == 2.0
    for name, gathered in (("zero2", 1), ("zero3", 2)):
        saved = sent_bytes(name, full, 2, reduces_whole=False) - sent_bytes(name, half, 2, reduces_whole=False)
        assert saved == pytest.approx(gathered * 1200 / 2)
        assert copied_bytes(name, full, 2) - copied_bytes(name, half, 2) == pytest.approx(gathered * 1200 * 2.5)
        assert slot_memory(half, name, 2, 1).transient == slot_memory(full, name, 2, 1).transient
    assert sent_bytes("ddp", half, 2, reduces_whole=False) == sent_bytes("ddp", full, 2, reduces_whole=False)
