/** Templates: settings that experiments and tasks share. Seen by all; changed by their owner and administrators. */

import { useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { useLive } from "../api/live";
import { Command, Confirm, Dialog, Empty, Loading, Name, Problem, Time } from "../parts/basic";
import { FormDialog, Head, Same, TableFrame } from "../parts/form";
import { hasRightsOf } from "../session";
import { say } from "../toast";
import "../administration.css";

type Template = Schemas["Template"];
const EXAMPLE = "resources:\n  priority: 50\n";

/** template: null for a new one. */
interface Asked {
  action: "view" | "set" | "remove";
  template: Template | null;
}

export function Templates() {
  const live = useLive("templates", (signal) => api.get("/api/v1/templates", { signal }), 5);
  const [asked, setAsked] = useState<Asked | null>(null);
  const close = () => {
    setAsked(null);
    live.reload();
  };
  const templates = live.value?.templates ?? [];
  return (
    <>
      <div class="row">
        <h1>Templates</h1>
        <button type="button" class="main" onClick={() => setAsked({ action: "set", template: null })}>
          New template
        </button>
      </div>
      <Problem error={live.error} />
      {live.value === null && live.error === null ? <Loading /> : null}
      {live.value !== null && templates.length === 0 ? (
        <Empty>
          There is no template. Make one: <Command text="gangline template set NAME FILE.yaml" />
        </Empty>
      ) : null}
      {templates.length === 0 ? null : (
        <TableFrame label="Templates">
          <Head titles={["Name", "User", "Changed", "Actions"]} />
          <tbody>
            {templates.map((template) => (
              <Row key={template.name} template={template} ask={(action) => setAsked({ action, template })} />
            ))}
          </tbody>
        </TableFrame>
      )}
      <Same command="gangline template list" />
      {asked?.action === "set" ? <SetDialog template={asked.template} onClose={close} /> : null}
      {asked?.action === "view" && asked.template ? <ViewDialog template={asked.template} onClose={close} /> : null}
      {asked?.action === "remove" && asked.template ? <RemoveDialog template={asked.template} onClose={close} /> : null}
    </>
  );
}

function Row({ template, ask }: { template: Template; ask: (action: Asked["action"]) => void }) {
  const { name, username } = template;
  const mayChange = hasRightsOf(username);
  return (
    <tr>
      <th scope="row">
        <Name text={name} />
      </th>
      <td>
        <Name text={username} />
      </td>
      <td>
        <Time at={template.updatedAt ?? template.createdAt} />
      </td>
      <td>
        <span class="row">
          <button type="button" aria-label={`View ${name}`} onClick={() => ask("view")}>
            View
          </button>
          {mayChange ? (
            <>
              <button type="button" aria-label={`Change ${name}`} onClick={() => ask("set")}>
                Change
              </button>
              <button type="button" class="danger" aria-label={`Remove ${name}`} onClick={() => ask("remove")}>
                Remove
              </button>
            </>
          ) : (
            <span class="quiet">changed by its user alone</span>
          )}
        </span>
      </td>
    </tr>
  );
}

function textOf(template: Template): string {
  return JSON.stringify(template.config, null, 2);
}

function ViewDialog({ template, onClose }: { template: Template; onClose: () => void }) {
  return (
    <Dialog title={`Template ${template.name}`} onClose={onClose}>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it is scrolled by keyboard */}
      <pre tabIndex={0}>{textOf(template)}</pre>
      <Same command={`gangline template describe ${template.name}`} />
      <div class="row end">
        <button type="button" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

function SetDialog({ template, onClose }: { template: Template | null; onClose: () => void }) {
  const set = async (values: FormData) => {
    const name = template?.name ?? String(values.get("name"));
    const body = { config: String(values.get("config")) };
    await api.put("/api/v1/templates/{name}", { parts: { name }, body });
    say(`template ${name} is stored`);
  };
  const title = template === null ? "New template" : `Change template ${template.name}`;
  return (
    <FormDialog title={title} action="Store" onSubmit={set} onClose={onClose}>
      {template === null ? (
        <label>
          Name <input name="name" required />
        </label>
      ) : null}
      <label>
        Settings of an experiment, as YAML or JSON
        <textarea
          class="code"
          name="config"
          spellcheck={false}
          defaultValue={template === null ? EXAMPLE : textOf(template)}
        />
      </label>
      <p class="quiet">Experiments that were made from it stay as they are.</p>
      <Same command={`gangline template set ${template?.name ?? "NAME"} FILE.yaml`} />
    </FormDialog>
  );
}

function RemoveDialog({ template, onClose }: { template: Template; onClose: () => void }) {
  const remove = async () => {
    await api.delete("/api/v1/templates/{name}", { parts: { name: template.name } });
    say(`template ${template.name} is removed`);
  };
  return (
    <Confirm title={`Remove template ${template.name}?`} action="Remove" onConfirm={remove} onClose={onClose}>
      <p>Experiments that were made from it stay as they are.</p>
      <Same command={`gangline template remove ${template.name}`} />
    </Confirm>
  );
}
