"""The choice among strategies: worked examples, refusals with their numbers, and the smallest number of slots."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gangline.pytorch.plan.model_size import Connection, ModelSize, UnitSize
from gangline.pytorch.plan.rule import Candidate, Work, choose, fewest_slots, list_candidates, nothing_fits
from gangline.pytorch.plan.stages import Pipeline
from gangline.pytorch.plan.step_time import GIB, PASS_KERNELS, Place, moved_bytes, stage_seconds

# Each slot has the same batch, whose activations are 2 x 10^9 bytes, on any number of slots.
_SAME_BATCH = Work(records=None)


def _model(parameters: float, largest_block: float = 0, units: tuple[UnitSize, ...] = ()) -> ModelSize:
    return ModelSize(round(parameters * 1e9), round(largest_block * 1e9), activation_bytes=2e9, units=units)


def _pick(model: ModelSize, slots: int, machines: int) -> str | None:
    chosen = choose(list_candidates(model, _SAME_BATCH, Place(slots, slots // machines, 16 * GIB)))
    return chosen.strategy if chosen else None


@pytest.mark.parametrize(
    ("parameters", "slots", "machines", "pick"),
    [
        (0.35, 4, 1, "ddp"),
        # zero1 fits too, but sends gradients as ddp does and then the parameters.
        (1.0, 4, 1, "zero2"),
        (1.5, 4, 1, "zero2"),
        (2.7, 4, 1, "zero3"),
        (2.7, 8, 2, "hsdp"),
        (5.0, 8, 2, "zero3"),
        (7.5, 8, 2, None),
    ],
)
def test_worked_examples(parameters: float, slots: int, machines: int, pick: str | None) -> None:
    """fp32 with AdamW, slots of 16 GiB, small blocks, a model that no pipeline can cut."""
    assert _pick(_model(parameters), slots, machines) == pick


_CPUS = Place(
    4,
    4,
    16 * GIB,
    slot_flops=1e11,
    inside_rate=2e9,
    message_seconds=1e-3,
    reduces_whole=True,
    kernel_seconds=0,
    memory_rate=math.inf,
    copy_rate=2e9,
)


def _seconds(model: ModelSize, place: Place, records: int = 4) -> dict[str, float]:
    rows = list_candidates(model, Work(records=records), place)
    return {row.name: row.seconds for row in rows if row.memory is not None}


def test_zero1_is_chosen_on_cpus_because_zero2_copies_and_waits_for_each_group() -> None:
    """10^9 parameters in 10 groups. zero1 sends 2 g (n - 1) / n and then passes all parameters on, 4 bytes for each,
    which are received in new memory.
    zero2 sends 3 (n - 1) / n, with 41 messages, and copies 4 (2 + 1 / n) + 4 (1 + 1 / n) bytes."""
    model = replace(_model(1.0), num_groups=10, activation_bytes=0.0)
    seconds = _seconds(model, _CPUS)
    assert seconds["zero1"] - seconds["ddp"] == pytest.approx(4e9 / 2e9 + 4e9 / 2e9 + 1e-3)
    assert seconds["zero2"] == pytest.approx(3 * 4e9 * 0.75 / 2e9 + 41e-3 + 4e9 * 3.5 / 2e9)
    assert seconds["zero3"] - seconds["zero2"] == pytest.approx(4e9 * 0.75 / 2e9 + 18e-3 + 4e9 * 2.25 / 2e9)
    assert seconds["ddp"] < seconds["zero1"] < seconds["zero2"]
    # Without copies the owners of zero1, which send one after the other, are slower.
    fast = _seconds(model, replace(_CPUS, copy_rate=math.inf))
    assert fast["zero2"] < fast["zero1"]


def test_gpus_take_time_for_the_bytes_that_other_operations_stream() -> None:
    """A GPU runs products and other operations one after another, and issues them meanwhile. On a CPU much of what
    other operations read is in caches."""
    gpu = Place(1, 1, slot_flops=1e12, kernel_seconds=1e-3, memory_rate=1e9)
    assert gpu.compute_seconds(2e12, 500, 1e9, streamed=3e9) == pytest.approx(2 + 3)
    assert gpu.compute_seconds(2e12, 7000, 1e9, streamed=3e9) == pytest.approx(7)
    cpu = replace(gpu, reduces_whole=True)
    assert cpu.compute_seconds(2e12, 500, 1e9, streamed=3e9) == pytest.approx(2 + 0.5 + 1)
    model = replace(_model(1.0), streamed_bytes=5e9)
    one = Place(1, 1, slot_flops=1e20, kernel_seconds=0.0, memory_rate=1e9)
    added = _seconds(model, one)["none"] - _seconds(replace(model, streamed_bytes=0.0), one)["none"]
    # 12 bytes of each parameter and its gradient are moved anyway.
    assert added == pytest.approx(4 * 5 - 12)
    # Stages have parts of them as of the products.
    units = tuple(UnitSize(str(number), 10, forward_flops=flops) for number, flops in enumerate((1.0, 3.0)))
    stages = stage_seconds(replace(model, units=units), Pipeline((1, 1), 2, "GPipe", 2, 4), replace(one, slots=2))
    assert stages == pytest.approx([4 * 5 / 4, 3 * 4 * 5 / 4])


def test_owners_of_zero1_send_at_the_rate_of_a_broadcast() -> None:
    model = replace(_model(1.0), activation_bytes=0.0)
    slow, fast = (_seconds(model, replace(_CPUS, broadcast_rate=rate)) for rate in (1e9, 4e9))
    assert slow["zero1"] - fast["zero1"] == pytest.approx(4e9 / 1e9 - 4e9 / 4e9)
    assert {key: value for key, value in slow.items() if key != "zero1"} == {
        key: value for key, value in fast.items() if key != "zero1"
    }


def test_the_optimizers_step_takes_time_for_the_parameters_that_a_slot_steps() -> None:
    """1000 operations for 8 tensors of 1000 elements, 80 bytes for each element. An owner of zero1 has 2 of them on
    4 slots. zero2 divides each tensor. A stage of 2 has half of them, and half of these with replicas: zero2."""
    units = tuple(UnitSize(str(number), 1000, tensors=(1000,)) for number in range(8))
    model = ModelSize(8000, 1000, units=units, tensors=(1000,) * 8)
    place = replace(_CPUS, inside_rate=math.inf, message_seconds=0.0, copy_rate=math.inf)
    stepping = replace(model, update_kernels=1000.0, update_bytes=80.0)

    def added(place: Place) -> dict[str, float]:
        without, found = _seconds(model, place, 64), _seconds(stepping, place, 64)
        return {name: found[name] - without[name] for name in found}

    issued, moved = added(replace(place, kernel_seconds=1e-5)), added(replace(place, memory_rate=1e6))
    assert issued["ddp"] == pytest.approx(1e-2)
    assert moved["ddp"] == pytest.approx(8000 * 80 / 1e6)
    for name, tensors, elements in (
        ("zero1", 1 / 4, 1 / 4),
        ("zero2", 1, 1 / 4),
        ("zero3", 1, 1 / 4),
        ("pipeline (stages 4 microbatches 16)", 1 / 4, 1 / 4),
        ("pipeline (stages 2 microbatches 8)", 1 / 2, 1 / 2),
        ("pipeline (stages 2 microbatches 8 replicas zero2)", 1 / 4, 1 / 4),
    ):
        assert issued[name] == pytest.approx(tensors * issued["ddp"]), name
        assert moved[name] == pytest.approx(elements * moved["ddp"]), name


def test_parts_of_hsdp_are_those_of_one_machine() -> None:
    model = ModelSize(8000, 1000, tensors=(1000,) * 8, update_bytes=80.0)
    place = replace(_CPUS, slots=8, slots_per_machine=2, inside_rate=math.inf, across_rate=math.inf)
    place = replace(place, message_seconds=0.0, copy_rate=math.inf)
    moved, still = (_seconds(model, replace(place, memory_rate=rate), 64) for rate in (1e6, math.inf))
    assert moved["hsdp"] - still["hsdp"] > moved["zero3"] - still["zero3"]
    passes = moved_bytes(model, 8000, 1) / 1e6
    assert moved["hsdp"] - passes == pytest.approx(8000 * 80 / 2 / 1e6)


def test_no_backward_pass_reaches_frozen_units_at_the_beginning() -> None:
    """Both passes of all are 7 products: the frozen two have one each, the others 5 together."""
    units = tuple(UnitSize(str(number), 1000, forward_flops=1.0, has_backward=number > 1) for number in range(4))
    model = ModelSize(4000, 1000, units=units, forward_flops=4.0, flop_passes=7 / 4, forward_kernels=4.0)
    model = replace(model, kernel_passes=10 / 4)
    place = replace(_CPUS, slots=2, slot_flops=1.0)

    def seconds(place: Place) -> list[float]:
        return stage_seconds(model, Pipeline((2, 2), 2, "1F1B", 4, 8), place)

    assert seconds(place) == pytest.approx([2 * 8, 5 * 8])
    issued = replace(place, slot_flops=math.inf, kernel_seconds=1.0)
    scheduled = 2 * PASS_KERNELS
    assert seconds(issued) == pytest.approx([(2 + scheduled) * 4, (8 + scheduled) * 4])


def test_operations_of_convolutions_have_their_own_speed() -> None:
    units = (UnitSize("first", 1000, forward_flops=1.0), UnitSize("second", 1000, forward_flops=1.0))
    model = ModelSize(2000, 1000, units=units, forward_flops=2.0, flop_passes=3.0, convolved=0.5)
    place = Place(2, 2, slot_flops=1.0, memory_rate=math.inf, kernel_seconds=0.0)
    cut = Pipeline((1, 1), 2, "1F1B", 4, 8)
    assert stage_seconds(model, cut, place) == pytest.approx([3 * 8, 3 * 8])
    # Half of the operations take a quarter of the time.
    faster = replace(place, convolution_flops=4.0)
    assert stage_seconds(model, cut, faster) == pytest.approx([3 * 8 * 5 / 8] * 2)
    alone = replace(faster, slots=1)
    assert _seconds(model, alone, 1)["none"] == pytest.approx(2 * 3 * 5 / 8)


def test_measured_passes_count_instead_of_the_usual_ones() -> None:
    model = replace(_model(1.0), forward_flops=1e12, forward_kernels=1000.0, recomputation="full")
    one = Place(1, 1, 80 * GIB, slot_flops=1e12)
    name = "none (recompute full)"
    assert _seconds(model, one, 1)[name] == pytest.approx(4.0)
    assert _seconds(replace(model, flop_passes=3.5), one, 1)[name] == pytest.approx(3.5)
    issued = replace(one, slot_flops=math.inf, kernel_seconds=1e-3)
    assert _seconds(replace(model, kernel_passes=6.0), issued, 1)[name] == pytest.approx(6.0)


def test_a_gpu_hides_all_groups_but_the_last() -> None:
    one, many = (_seconds(replace(_model(1.0), num_groups=groups), Place(4, 4, 80 * GIB)) for groups in (1, 100))
    assert one == many


def test_each_microbatch_of_a_pipeline_issues_the_kernels_and_moves_the_parameters_again() -> None:
    """8 units in 2 stages and 8 microbatches, of which 9 take turns. A stage has half of 100 kernels and of 8000
    parameters: 3 passes of 50 kernels; 12 bytes for a parameter, and 12 more from the second call on."""
    units = tuple(UnitSize(str(number), 1000) for number in range(8))
    model = ModelSize(8000, 1000, units=units, forward_kernels=100.0)
    place = replace(_CPUS, slots=2, slots_per_machine=2, inside_rate=math.inf, message_seconds=0.0)
    name = "pipeline (stages 2 microbatches 8)"
    issued = _seconds(model, replace(place, kernel_seconds=1e-5), 64)
    assert issued["ddp"] == pytest.approx(300e-5)
    # And a microbatch is scheduled in both passes.
    assert issued[name] == pytest.approx(9 * (150 + 2 * PASS_KERNELS) * 1e-5)
    moved = _seconds(model, replace(place, memory_rate=1e6), 64)
    assert moved["ddp"] == pytest.approx(8000 * 12 / 1e6)
    assert moved[name] == pytest.approx(4000 * (8 * 12 + 7 * 12) / 1e6 * 9 / 8)


def test_a_gpu_computes_while_it_issues_and_moves() -> None:
    model = replace(_model(1.0), forward_flops=1e12, forward_kernels=1000.0)
    one = Place(1, 1, 80 * GIB, slot_flops=1e12)
    alone = _seconds(model, one, 1)["none"]
    assert alone == pytest.approx(3.0)
    assert _seconds(model, replace(one, kernel_seconds=1e-3, memory_rate=4e9), 1)["none"] == pytest.approx(3.0)
    assert _seconds(model, replace(one, kernel_seconds=2e-3), 1)["none"] == pytest.approx(6.0)
    assert _seconds(model, replace(one, memory_rate=3e9), 1)["none"] == pytest.approx(4.0)


def test_a_microbatch_hops_from_stage_to_stage() -> None:
    """8 microbatches and 2 stages: 18 hops, each half of an exchange among both slots."""
    units = tuple(UnitSize(str(number), 1000) for number in range(8))
    place = replace(_CPUS, slots=2, slots_per_machine=2, inside_rate=math.inf, message_seconds=2e-3)
    seconds = _seconds(ModelSize(8000, 1000, units=units), place, 64)
    assert seconds["pipeline (stages 2 microbatches 8)"] == pytest.approx(18e-3)


def test_one_slot_trains_alone() -> None:
    assert _pick(_model(0.35), 1, 1) == "none"
    assert _pick(_model(1.0), 1, 1) is None


def test_smallest_number_of_slots_that_fits() -> None:
    place = Place(8, 4, 16 * GIB)
    model = _model(7.5)
    assert fewest_slots(model, _SAME_BATCH, place) == 10
    message = nothing_fits(model, _SAME_BATCH, place, list_candidates(model, _SAME_BATCH, place)).message
    assert message == (
        "parallelism: no strategy fits on 8 slots of 16.00 GiB, of which 13.90 GiB are usable: zero3 needs 15.83 GiB; "
        "10 such slots would do"
    )


def test_no_number_of_slots_helps_against_activations() -> None:
    place = Place(2, 2, 1 * GIB)
    model = _model(0.001)
    candidates = list_candidates(model, _SAME_BATCH, place)
    assert "more slots do not help" in nothing_fits(model, _SAME_BATCH, place, candidates).message


def test_a_huge_block_needs_a_pipeline() -> None:
    """2.7e9 parameters, 1.2e9 of them in one embedding: its transient bytes alone are above a slot."""
    assert _pick(_model(2.7, 1.2), 8, 2) is None
    blocks = tuple(UnitSize(f"blocks.{number}", 300_000_000, 0.1e9, 1e6) for number in range(9))
    model = _model(2.7, 1.2, blocks)
    assert _pick(model, 8, 2) == "pipeline"


def test_refusals_have_numbers() -> None:
    work, place = Work(records=3), Place(4, 4, 16 * GIB)
    refusals = {row.strategy: row.refusal for row in list_candidates(_model(0.1), work, place)}
    assert refusals["ddp"] == "a batch of 3 records is smaller than 4 slots"
    assert refusals["pipeline"] == "cannot cut the model: it has no list of at least two modules"
    compressed = Work(records=4, compresses=True)
    refusals = {row.strategy: row.refusal for row in list_candidates(_model(0.1), compressed, place)}
    assert refusals["ddp"] == ""
    assert "cannot compress" in refusals["zero3"]
    refusals = {row.strategy: row.refusal for row in list_candidates(_model(1.0), _SAME_BATCH, place)}
    assert refusals["ddp"] == "needs 16.76 GiB, above the usable 13.90 GiB"


def test_a_batch_too_small_for_microbatches() -> None:
    units = tuple(UnitSize(str(number), 10) for number in range(4))
    rows = list_candidates(_model(0.1, units=units), Work(records=2), Place(4, 4, 16 * GIB))
    assert [row.refusal for row in rows if row.strategy == "pipeline"] == [
        "a replica's 1 records cannot be cut into the 2 microbatches that 1F1B needs",
        "a replica's 2 records cannot be cut into the 4 microbatches that 1F1B needs",
    ]


def test_more_stages_than_units() -> None:
    units = (UnitSize("0", 10), UnitSize("1", 10))
    rows = list_candidates(_model(0.1, units=units), Work(records=64), Place(4, 4, 16 * GIB))
    refusals = ["", "", "has 4 parts, and the model 2 units"]
    assert [row.refusal for row in rows if row.strategy == "pipeline"] == refusals


def test_replicas_that_divide_the_step_fit_where_whole_states_do_not() -> None:
    """Two stages of 0.5 x 10^9 parameters, each on two slots: 16 bytes for a parameter, or 12 with half the states."""
    units = tuple(UnitSize(str(number), 250_000_000, tensors=(125_000_000,) * 2) for number in range(4))
    model = ModelSize(10**9, 10**9, units=units)
    rows = list_candidates(model, Work(records=64), Place(4, 4, 8 * GIB, across_rate=1e9))
    whole, divided = (row for row in rows if dict(row.options).get("stages") == 2)
    assert (whole.name, divided.name) == (
        "pipeline (stages 2 microbatches 8)",
        "pipeline (stages 2 microbatches 8 replicas zero2)",
    )
    assert "above the usable" in whole.refusal
    assert divided.refusal == ""
    # As many bytes, in more messages.
    assert divided.seconds == pytest.approx(whole.seconds + 3 * 50e-6)


def test_a_batch_with_two_calls_of_the_model_is_no_work_for_a_pipeline() -> None:
    units = tuple(UnitSize(str(number), 10) for number in range(4))
    work = replace(_SAME_BATCH, refused={"pipeline": "calls it again"})
    rows = list_candidates(_model(0.1, units=units), work, Place(4, 4, 16 * GIB))
    assert [row.refusal for row in rows if row.strategy == "pipeline"] == ["calls it again"]
    assert all(row.refusal == "" for row in rows if row.strategy in ("ddp", "zero3"))


def test_a_later_row_must_be_clearly_faster() -> None:
    def pick(*seconds: float) -> str:
        chosen = choose([Candidate(str(place), seconds=each) for place, each in enumerate(seconds)])
        assert chosen is not None
        return chosen.strategy

    assert pick(1.04, 1.0) == "0"
    assert pick(1.06, 1.04, 1.0) == "1"
    assert pick(1.1, 1.2, 1.0) == "2"
    assert choose([Candidate("ddp", refusal="does not fit")]) is None


def test_a_slow_link_between_machines_prefers_a_pipeline() -> None:
    """ddp fits too, but exchanges all gradients over the slow link."""
    units = tuple(UnitSize(str(number), 50_000_000, 1e6, 1e5, 1.25e11) for number in range(8))
    model = ModelSize(400_000_000, 50_000_000, units=units, activation_bytes=8e6, forward_flops=1e12)
    work = Work(records=256)
    fast, slow = Place(2, 2, 80 * GIB), Place(2, 1, 80 * GIB, across_rate=1e8)
    tables = [list_candidates(model, work, place) for place in (fast, slow)]
    picks = [choose(table) for table in tables]
    assert [pick.strategy if pick else None for pick in picks] == ["ddp", "pipeline"]
    [ddp] = [row for row in tables[1] if row.strategy == "ddp"]
    # 128 records, forward and twice that backward; half of the gradients go over the link twice.
    assert ddp.seconds == pytest.approx(3 * 1e12 * 128 / 10e12 + 2 * 4 * 4e8 / 2 / 1e8 + 50e-6)


def test_a_small_model_trains_with_ddp_because_each_message_takes_time() -> None:
    units = tuple(UnitSize(str(number), 4160, 1e3, 256, 8e3) for number in range(4))
    model = ModelSize(4 * 4160, 4160, units=units, activation_bytes=4e3, forward_flops=32e3)
    for slots in (2, 4, 8):
        pick = choose(list_candidates(model, Work(records=64), Place(slots, slots, 16 * GIB)))
        assert pick is not None
        assert pick.name == "ddp"


def test_a_reason_of_several_strategies_is_named_once() -> None:
    work, place = replace(_SAME_BATCH, refused=dict.fromkeys(("ddp", "zero1", "zero2", "zero3"), "odd")), Place(2, 2)
    error = nothing_fits(_model(0.1), work, place, list_candidates(_model(0.1), work, place))
    assert error.code == "parallelism.auto"
    assert "; ddp, zero1, zero2, zero3: odd; " in error.message


def test_a_pipeline_sends_what_its_own_borders_carry() -> None:
    """A byte takes a second, and everything else no time. The largest output is inside of the first part."""
    units = tuple(UnitSize(str(place), 10, 0, size) for place, size in enumerate((500, 20, 30, 40)))
    place = Place(2, 2, slot_flops=float("inf"), inside_rate=1, message_seconds=0, kernel_seconds=0)
    for connections, border in (((), 20), ((Connection("0", 500, 0, 1, 3),), 520)):
        model = ModelSize(40, 10, units=units, connections=connections)
        [row] = [each for each in list_candidates(model, Work(8), place) if each.strategy == "pipeline"]
        assert row.seconds == pytest.approx(2 * border * 8)
