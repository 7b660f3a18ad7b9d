"""PURE: sets and removes templates. An experiment keeps the settings that it was made from."""

from __future__ import annotations

from dataclasses import replace

from gangline.config.layer.lookup import find_template
from gangline.config.layer.secret import restore_secrets
from gangline.config.layer.template_check import check_name
from gangline.domain.experiment import Project, Template, Workspace
from gangline.errors import conflict
from services.scheduler.state.records import Draft, Records, StateChange
from services.scheduler.transition.project.rule import Caller, check_owner, note_removal, remember, was_removed_by


def set_template(records: Records, name: str, config_json: str, caller: Caller, now: float) -> StateChange:
    """Creates the template, or replaces its settings. A request that has set it before changes nothing.

    Raises GanglineError `template.name`, `auth.not_owner`, `config.masked`. check_template has accepted the settings.
    """
    check_name("template", name)
    template = records.find(Template, name) or Template(name, owner=caller.user, created_at=now)
    if caller.request_id in template.request_ids:
        return StateChange()
    check_owner(caller, template.owner, f"change template {name!r}")
    draft = Draft(records)
    draft.put(
        replace(
            template,
            config_json=restore_secrets(config_json, [template.config_json]),
            updated_at=now,
            request_ids=remember(template.request_ids, caller),
        )
    )
    return draft.change


def remove_template(records: Records, name: str, caller: Caller) -> StateChange:
    """Removes the template. A request that has removed it before changes nothing.

    Raises GanglineError `template.not_found`, `auth.not_owner`, and `template.needed` while it is a default.
    """
    if was_removed_by(records, caller):
        return StateChange()
    template = find_template(name, records.all_of(Template))
    check_owner(caller, template.owner, f"remove template {name!r}")
    holders: list[Workspace | Project] = [*records.all_of(Workspace), *records.all_of(Project)]
    for holder in holders:
        if holder.defaults.template == name:
            what = f"{type(holder).__name__.lower()} {holder.name!r}"
            raise conflict(
                "template.needed",
                f"template {name!r} is the default of {what}, so it was not removed; edit the default first, with "
                "--default-template",
            )
    draft = Draft(records)
    draft.delete(Template, name)
    note_removal(draft, caller)
    return draft.change
