"""Chooses experiments by labels, states, owners, names and projects: the options of lists and of batch actions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.shared import MOST_ID, InProject, InWorkspace
from gangline.domain.experiment import Experiment, ExperimentFilter
from gangline.domain.state import Outcome, State
from gangline.errors import invalid

if TYPE_CHECKING:
    from gangline.client import Client

# Experiments in one answer of the gateway.
_PAGE = 1000
LIVE_STATES = tuple(state for state in State if state is not State.TERMINAL)
ENDED_STATES = (State.TERMINAL,)
_WORDS: dict[str, State | Outcome] = {
    "ended": State.TERMINAL,
    **{value.lower(): value for value in (*LIVE_STATES, *Outcome)},
}

Labels = Annotated[
    list[str] | None, typer.Option("--label", metavar="LABEL", help="Only those with this label; may be repeated.")
]
States = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STATE", help=f"Only those in this state ({', '.join(_WORDS)}); may be repeated."),
]
Owners = Annotated[
    list[str] | None, typer.Option("--owner", metavar="USER", help="Only those of this user; may be repeated.")
]
NamePart = Annotated[str, typer.Option("--name", metavar="TEXT", help="Only those with this text in their name.")]
SomeExperimentIds = Annotated[
    list[int] | None,
    typer.Argument(metavar="[ID...]", help="The numbers of the experiments.", min=1, max=MOST_ID),
]


@dataclass(frozen=True)
class SelectionOptions:
    """The options of a command that choose experiments; all of them have to hold."""

    label: Labels = None
    state: States = None
    owner: Owners = None
    name: NamePart = ""
    workspace: InWorkspace = ""
    project: InProject = ""

    @property
    def is_given(self) -> bool:
        return any((self.label, self.state, self.owner, self.name, self.workspace, self.project))

    def make_filter(self, default_states: Iterable[State] = ()) -> ExperimentFilter:
        """default_states: applies where the user named no state. Raises GanglineError `experiment.state` for a word
        that is no state."""
        values = []
        for word in self.state or ():
            if word.lower() not in _WORDS:
                raise invalid("experiment.state", f"--state {word!r} is no state; give one of {', '.join(_WORDS)}")
            values.append(_WORDS[word.lower()])
        return ExperimentFilter(
            labels=tuple(self.label or ()),
            states=tuple(value for value in values or default_states if isinstance(value, State)),
            outcomes=tuple(value for value in values if isinstance(value, Outcome)),
            owners=tuple(self.owner or ()),
            name_contains=self.name,
        )


def find_selected(
    client: Client, selection: SelectionOptions, wanted: ExperimentFilter, archived: bool | None
) -> list[Experiment]:
    """Returns the experiments of a selection, the oldest first. wanted: the filter that the selection has made.

    Raises GanglineError `gateway.no_filter` for a gateway of an earlier version, which ignores the conditions.
    """
    selected: list[Experiment] = []
    before_id = 0
    while True:
        page = client.list_experiments(
            _PAGE,
            before_id,
            archived,
            workspace=selection.workspace,
            project=selection.project,
            wanted=wanted,
        )
        if not all(wanted.matches(experiment) for experiment in page):
            raise invalid("gateway.no_filter", "this gateway is too old to choose experiments; name their ids")
        selected += page
        if len(page) < _PAGE:
            return selected[::-1]
        before_id = page[-1].id
