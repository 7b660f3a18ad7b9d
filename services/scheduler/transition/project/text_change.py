"""PURE: changes the texts and the labels of an experiment, in any of its states.

They are in its configuration as well, so a fork has them too; notes are in the record alone.
"""

from __future__ import annotations

from dataclasses import replace

from gangline.config.layer.experiment_text import check_text_change, merge_labels
from gangline.domain.experiment import Experiment, TextChange
from gangline.domain.settled.reading import with_values
from gangline.errors import conflict
from services.scheduler.state.records import Draft, Records, StateChange, get


def change_texts(records: Records, experiment_id: int, change: TextChange) -> StateChange:
    """Changes what the request names; a change to the present values has no effect.

    Raises GanglineError `experiment.not_found`, `experiment.deleting`, `texts.*`.
    """
    check_text_change(change)
    experiment = get(records, Experiment, experiment_id)
    if experiment.is_deleting:
        raise conflict("experiment.deleting", f"experiment {experiment_id} is being deleted; nothing else changes it")
    labels = merge_labels(experiment.labels, change)
    texts = {("name",): change.name, ("description",): change.description}
    values: dict[tuple[str, ...], object] = {("labels",): list(labels)}
    values |= {path: text for path, text in texts.items() if text is not None}
    changed = replace(
        experiment,
        config_json=with_values(experiment.config_json, values),
        name=experiment.name if change.name is None else change.name,
        notes=experiment.notes if change.notes is None else change.notes,
        labels=labels,
    )
    draft = Draft(records)
    if changed != experiment:
        draft.put(changed)
    return draft.change
