"""Plans of generated models: more slots never need more bytes per slot, and a table never depends on anything else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.pytorch.plan.decision import decide
from gangline.pytorch.plan.memory import slot_memory
from gangline.pytorch.plan.model_size import ModelSize, UnitSize
from gangline.pytorch.plan.rule import Work, choose, list_candidates
from gangline.pytorch.plan.step_time import GIB, Place

_UNITS = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**7)), min_size=0, max_size=9)


@st.composite
def _models(draw: st.DrawFn) -> ModelSize:
    rows = draw(_UNITS)
    units = tuple(UnitSize(str(place), *row, 1000, 1e6) for place, row in enumerate(rows))
    total = sum(unit.parameters for unit in units) or draw(st.integers(1, 10**10))
    block = draw(st.integers(0, total))
    activations = float(sum(unit.activation_bytes for unit in units))
    optimizer = draw(st.sampled_from((0, 4, 8)))
    return ModelSize(total, block, optimizer=optimizer, activation_bytes=activations, units=units)


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3"])
@given(model=_models(), slots=st.integers(2, 64), more=st.integers(1, 64), batch=st.integers(128, 4096))
def test_more_slots_never_need_more_bytes(strategy: str, model: ModelSize, slots: int, more: int, batch: int) -> None:
    few = slot_memory(model, strategy, slots, batch // slots).total
    many = slot_memory(model, strategy, slots + more, batch // (slots + more)).total
    assert many <= few * (1 + 1e-12)


@given(model=_models(), slots=st.integers(1, 16), per_machine=st.integers(1, 8), gib=st.floats(1, 100))
def test_the_choice_fits_is_fast_and_repeats(model: ModelSize, slots: int, per_machine: int, gib: float) -> None:
    place, work = Place(slots, per_machine, gib * GIB), Work(records=64)
    rows = list_candidates(model, work, place)
    assert list_candidates(model, work, place) == rows
    chosen = choose(rows)
    fitting = [row for row in rows if row.memory is not None and row.memory.total <= 0.9 * gib * GIB - 0.5 * GIB]
    assert (chosen is None) == (not fitting)
    assert all(row.refusal for row in rows if row not in fitting)
    if chosen is not None:
        assert chosen in fitting
        assert chosen.seconds <= 1.05 * min(row.seconds for row in fitting)
        before = rows[: rows.index(chosen)]
        assert all(row.seconds > 1.05 * min(row.seconds for row in fitting) for row in before if row in fitting)


_PLACES = st.builds(
    lambda slots, per_machine, gib, whole: Place(slots, per_machine, gib * GIB, reduces_whole=whole),
    st.integers(1, 16),
    st.integers(1, 8),
    st.floats(1, 100),
    st.booleans(),
)


@given(model=_models(), place=_PLACES, saved=st.floats(0, 1), replicas=st.sampled_from((None, "ddp", "zero2")))
def test_auto_chooses_among_the_fastest_that_fit_of_all_rows(
    model: ModelSize, place: Place, saved: float, replicas: str | None
) -> None:
    """saved: the part of the activations that recomputation need not keep."""
    units = tuple(replace(unit, activation_bytes=unit.activation_bytes * (1 - saved)) for unit in model.units)
    again = replace(model, activation_bytes=model.activation_bytes * (1 - saved), units=units, recomputation="blocks")
    assert place.memory_bytes
    usable = 0.9 * place.memory_bytes - 0.5 * GIB
    work = Work(records=64, replicas=replicas)
    decision = decide([model, again], work, place)
    assert decide([model, again], work, place) == decision
    rows = [each for each in decision.candidates if each.memory is not None]
    fitting = [each for each in rows if each.memory and each.memory.total <= usable]
    assert [each.name for each in rows if not each.refusal] == [each.name for each in fitting]
    assert len({each.name for each in decision.candidates}) == len(decision.candidates)
    assert {each.recomputation for each in rows} == {"none", "blocks"}
    if decision.chosen is None:
        assert not fitting
    else:
        assert decision.chosen.seconds <= 1.05 * min(each.seconds for each in fitting)
        assert decision.chosen in fitting
    for each in rows:
        # Replicas that divide the step need no more memory than others.
        options = dict(each.options)
        if options.pop("replicas", None) and replicas is None:
            same = [row for row in rows if row.recomputation == each.recomputation]
            (whole,) = (row for row in same if dict(row.options) == options and row.strategy == each.strategy)
            assert each.memory is not None
            assert whole.memory is not None
            assert each.memory.total <= whole.memory.total * (1 + 1e-12)
