"""Keeps the rows of all experiments, and makes those anew whose records changed.

Rows are made when a table is read, not when a record changes, so a gateway without readers makes none. One per gateway,
on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from gangline.domain.named_kind import DEFAULT_PROJECT, DEFAULT_WORKSPACE
from services.common import keys
from services.gateway.mirror.change_log import Topic
from services.gateway.mirror.mirror import Watched
from services.gateway.table.row import ExperimentRow, TrialRow
from services.gateway.table.table_field import Home


class RowIndex:
    def __init__(self, mirror: Watched) -> None:
        self._mirror = mirror
        # Invariant: the rows as the state was at this revision of the mirror's log.
        self._revision = -1
        self._row_by_id: dict[int, ExperimentRow] = {}
        self._newest_first: list[ExperimentRow] | None = None
        self._trial_rows_by_id: dict[int, tuple[ExperimentRow, list[TrialRow]]] = {}

    def experiments(self) -> Sequence[ExperimentRow]:
        """Returns the rows of all experiments, the newest first. The caller must not change the list."""
        self._refresh()
        if self._newest_first is None:
            self._newest_first = [self._row_by_id[id_] for id_ in sorted(self._row_by_id, reverse=True)]
        return self._newest_first

    def find(self, experiment_id: int) -> ExperimentRow | None:
        self._refresh()
        return self._row_by_id.get(experiment_id)

    def trials_of(self, row: ExperimentRow) -> Sequence[TrialRow]:
        """Returns the rows of its trials, in the order of their numbers."""
        kept = self._trial_rows_by_id.get(row.id)
        if kept is None or kept[0] is not row:
            rows = [TrialRow(trial, row) for trial in row.trials]
            # A change of one trial keeps what the rows of the others have parsed.
            by_trial = {id(each.trial): each for each in kept[1]} if kept is not None else {}
            for each in rows:
                earlier = by_trial.get(id(each.trial))
                if earlier is not None:
                    each.__dict__ |= {**earlier.__dict__, "home": row}
            kept = self._trial_rows_by_id[row.id] = (row, rows)
        return kept[1]

    def find_trial(self, row: ExperimentRow, trial_id: str) -> TrialRow | None:
        rows = self.trials_of(row)
        number = trial_id.rpartition(".")[2]
        # Trials are numbered from 1 and deleted with their experiment alone, so the number is the place.
        place = int(number) - 1 if number.isdecimal() else -1
        if 0 <= place < len(rows) and rows[place].id == trial_id:
            return rows[place]
        return next((each for each in rows if each.id == trial_id), None)

    def homes(self) -> dict[int, Home]:
        """Returns the names around the experiments of each project."""
        state = self._mirror.state
        workspaces = {workspace.id: workspace.name for workspace in state.workspaces.all()}
        workspaces.setdefault(DEFAULT_WORKSPACE.id, DEFAULT_WORKSPACE.name)
        projects = {DEFAULT_PROJECT.id: DEFAULT_PROJECT} | {project.id: project for project in state.projects.all()}
        return {
            project.id: Home(project.name, workspaces.get(project.workspace_id, ""), project.workspace_id)
            for project in projects.values()
        }

    def _refresh(self) -> None:
        revision = self._mirror.state.revision
        if revision == self._revision:
            return
        changed = self._mirror.log.since(self._revision) if self._revision >= 0 else None
        if changed is None:
            ids = {experiment.id for experiment in self._mirror.state.experiments.all()} | self._row_by_id.keys()
        else:
            ids = {int(key) for (topic, key), _ in changed if topic is Topic.EXPERIMENT}
        for experiment_id in ids:
            self._remake(experiment_id)
        self._revision = revision

    def _remake(self, experiment_id: int) -> None:
        state = self._mirror.state
        experiment = state.experiments.find(keys.experiment(experiment_id))
        before = self._row_by_id.pop(experiment_id, None)
        if experiment is None:
            self._trial_rows_by_id.pop(experiment_id, None)
            if before is not None:
                self._newest_first = None
            return
        trials = sorted(state.trials.of(experiment_id), key=lambda trial: trial.number)
        row = ExperimentRow(experiment, trials, state.searches.find(keys.search(experiment_id)))
        if before is not None and before.experiment is experiment and "settled" in before.__dict__:
            row.__dict__["settled"] = before.settled
        self._row_by_id[experiment_id] = row
        self._newest_first = None


class PartOfRows:
    """The rows of the experiments in some projects, which are those that a caller sees."""

    def __init__(self, index: RowIndex, project_ids: frozenset[int]) -> None:
        self._index = index
        self._project_ids = project_ids

    def experiments(self) -> Sequence[ExperimentRow]:
        return [row for row in self._index.experiments() if row.experiment.home_id in self._project_ids]

    def find(self, experiment_id: int) -> ExperimentRow | None:
        row = self._index.find(experiment_id)
        return row if row is not None and row.experiment.home_id in self._project_ids else None

    def trials_of(self, row: ExperimentRow) -> Sequence[TrialRow]:
        return self._index.trials_of(row)

    def find_trial(self, row: ExperimentRow, trial_id: str) -> TrialRow | None:
        return self._index.find_trial(row, trial_id)
