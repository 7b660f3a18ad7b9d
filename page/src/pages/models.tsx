/** Models, and one model with its versions, aliases and notes. Seen by all; changed by their owner and administrators. */

import { useState } from "preact/hooks";
import { useFollowed } from "../api/changes";
import { api, type Schemas } from "../api/client";
import { useLive } from "../api/live";
import { labelChange, readLabels, textChange } from "../lib/edits";
import { count, formatValue, shellWord } from "../lib/text";
import { Command, Confirm, CopyButton, Empty, Loading, Name, Problem, Time } from "../parts/basic";
import { FormDialog, Head, Same, TableFrame } from "../parts/form";
import { Markdown } from "../parts/markdown";
import { go, href, place, setQuery, type ViewProps } from "../router";
import { hasRightsOf } from "../session";
import { complain, say } from "../toast";
import "../administration.css";

type ModelRecord = Schemas["Model"];
type Version = Schemas["ModelVersionRow"];
const PAGE_ROWS = 100;
export function Models() {
  const query = place.value.query;
  const [name, hasArchived] = [query.get("text") ?? "", query.get("archived") === "yes"];
  const [limit, setLimit] = useState(PAGE_ROWS);
  const [isNew, setNew] = useState(false);
  const asked = { name, limit, ...(hasArchived ? {} : { archived: false }) };
  const load = (signal: AbortSignal) => api.get("/api/v1/models", { query: asked, signal });
  const live = useFollowed(JSON.stringify(asked), { models: true }, load, null);
  const models = live.value?.models ?? [];
  return (
    <>
      <div class="row">
        <h1>Models</h1>
        <button type="button" class="main" onClick={() => setNew(true)}>
          New model
        </button>
      </div>
      <search class="row">
        <label>
          Name contains{" "}
          <input type="search" value={name} onInput={(event) => setQuery({ text: event.currentTarget.value })} />
        </label>
        <label>
          <input
            type="checkbox"
            checked={hasArchived}
            onChange={(event) => setQuery({ archived: event.currentTarget.checked ? "yes" : "" })}
          />{" "}
          archived too
        </label>
        <span role="status">{live.value === null ? "Loading…" : count(live.value.pagination.total, "model")}</span>
      </search>
      <Problem error={live.error} />
      {live.value === null && live.error === null ? <Loading /> : null}
      {live.value !== null && models.length === 0 ? (
        <Empty>
          {name === "" ? (
            <>
              There is no model yet. Make one: <Command text="gangline model create NAME" />
            </>
          ) : (
            "No model matches."
          )}
        </Empty>
      ) : null}
      {models.length === 0 ? null : (
        <TableFrame label="Models">
          <Head titles={["Name", "Newest version", "Versions", "Aliases", "Labels", "User", "Workspace", "Changed"]} />
          <tbody>
            {models.map((model) => (
              <tr key={model.id}>
                <th scope="row">
                  <a href={href(`/models/${model.id}`)}>
                    <Name text={model.name} />
                  </a>
                  {model.archived ? " (archived)" : ""}
                </th>
                <td class="number">{model.newestVersion === 0 ? "–" : model.newestVersion}</td>
                <td class="number">{model.numVersions}</td>
                <td>{model.aliases.map((each) => `${each.name}: ${each.version}`).join(", ")}</td>
                <td>{model.labels.join(", ")}</td>
                <td>
                  <Name text={model.username} />
                </td>
                <td>
                  <Name text={model.workspaceName} />
                </td>
                <td>
                  <Time at={model.updatedAt ?? model.createdAt} />
                </td>
              </tr>
            ))}
          </tbody>
        </TableFrame>
      )}
      {(live.value?.pagination.total ?? 0) > models.length && live.value !== null ? (
        <button type="button" onClick={() => setLimit(limit + PAGE_ROWS)}>
          Show more
        </button>
      ) : null}
      <Same command="gangline model list" />
      {isNew ? <NewDialog onDone={live.reload} onClose={() => setNew(false)} /> : null}
    </>
  );
}

function NewDialog({ onDone, onClose }: { onDone: () => void; onClose: () => void }) {
  const create = async (values: FormData) => {
    const [name, description] = [String(values.get("name")).trim(), String(values.get("description"))];
    await api.post("/api/v1/models", { body: { name, description } });
    say(`the model ${name} is made`);
    onDone();
  };
  return (
    <FormDialog title="New model" action="Create" onSubmit={create} onClose={onClose}>
      <label>
        Name <input name="name" required />
      </label>
      <label>
        Description <input name="description" />
      </label>
      <Same command="gangline model create NAME --description TEXT" />
    </FormDialog>
  );
}

/** What is asked about a model or one of its versions. */
interface Asked {
  action: "edit" | "delete" | "alias" | "delete version";
  version: Version | null;
}

export function Model({ ids }: ViewProps) {
  const id = Number(ids[0]);
  const [limit, setLimit] = useState(PAGE_ROWS);
  const [asked, setAsked] = useState<Asked | null>(null);
  const load = async (signal: AbortSignal) => {
    const parts = { model_id: id };
    const [{ model }, page] = await Promise.all([
      api.get("/api/v1/models/{model_id}", { parts, signal }),
      api.get("/api/v1/models/{model_id}/versions", { parts, query: { limit }, signal }),
    ]);
    return { model, versions: page.versions, total: page.pagination.total };
  };
  const live = useFollowed(`${id} ${limit}`, { models: true }, load, null);
  if (live.value === null) return live.error === null ? <Loading /> : <Problem error={live.error} />;
  const { model, versions, total } = live.value;
  const mayChange = hasRightsOf(model.username);
  const close = () => {
    setAsked(null);
    live.reload();
  };
  const archive = async () => {
    try {
      const verb = model.archived ? "unarchive" : "archive";
      await api.post(`/api/v1/models/{model_id}/${verb}`, { parts: { model_id: id } });
      say(`${model.name} is ${model.archived ? "no longer archived" : "archived"}`);
      live.reload();
    } catch (failure) {
      complain(failure);
    }
  };
  return (
    <>
      <p>
        <a href={href("/models")}>Models</a>
      </p>
      <h1>
        Model <Name text={model.name} />
        {model.archived ? " (archived)" : ""}
      </h1>
      <Problem error={live.error} />
      {model.description === "" ? null : <p>{model.description}</p>}
      <p class="quiet">
        of <Name text={model.username} /> in <Name text={model.workspaceName} />
        {model.labels.length === 0 ? "" : `, ${model.labels.join(", ")}`}, changed <Time at={model.updatedAt} />
      </p>
      {mayChange ? (
        <div class="row">
          <button type="button" disabled={model.archived} onClick={() => setAsked({ action: "edit", version: null })}>
            Edit
          </button>
          <button type="button" onClick={archive}>
            {model.archived ? "Unarchive" : "Archive"}
          </button>
          <button type="button" class="danger" onClick={() => setAsked({ action: "delete", version: null })}>
            Delete
          </button>
        </div>
      ) : (
        <p class="quiet">It is changed by its user and administrators alone.</p>
      )}
      <h2>Aliases</h2>
      <Aliases model={model} mayChange={Boolean(mayChange) && !model.archived} onDone={live.reload} />
      <h2>Versions</h2>
      {versions.length === 0 ? (
        <Empty>
          There is no version yet. Register a checkpoint:{" "}
          <Command text={`gangline model register ${shellWord(model.name)} CHECKPOINT`} />
        </Empty>
      ) : (
        <TableFrame label="Versions">
          <Head
            titles={["Version", "Aliases", "Metrics", "Checkpoint", "Trial", "Batches", "By", "Registered", "Actions"]}
          />
          <tbody>
            {versions.map((version) => (
              <VersionRow
                key={version.number}
                version={version}
                mayChange={Boolean(mayChange)}
                isArchived={model.archived}
                ask={(action) => setAsked({ action, version })}
              />
            ))}
          </tbody>
        </TableFrame>
      )}
      {total > versions.length ? (
        <button type="button" onClick={() => setLimit(limit + PAGE_ROWS)}>
          Show more of {total}
        </button>
      ) : null}
      <h2>Notes</h2>
      {model.notes === "" ? (
        <Empty>
          There are no notes yet. Write some:{" "}
          <Command text={`gangline model edit ${shellWord(model.name)} --notes TEXT`} />
        </Empty>
      ) : (
        <Markdown text={model.notes} />
      )}
      <Same command={`gangline model describe ${shellWord(model.name)}`} />
      {asked?.action === "edit" ? <EditDialog model={model} onClose={close} /> : null}
      {asked?.action === "delete" ? <DeleteDialog model={model} onClose={() => setAsked(null)} /> : null}
      {asked?.action === "alias" && asked.version ? (
        <AliasDialog model={model} version={asked.version} onClose={close} />
      ) : null}
      {asked?.action === "delete version" && asked.version ? (
        <DeleteVersionDialog version={asked.version} onClose={close} />
      ) : null}
    </>
  );
}

function Aliases({ model, mayChange, onDone }: { model: ModelRecord; mayChange: boolean; onDone: () => void }) {
  const remove = async (alias: Schemas["ModelAlias"]) => {
    try {
      const parts = { model_id: model.id, alias: alias.name };
      // Only the alias that is shown is removed, not one that another user has moved meanwhile.
      const body = { version: 0, expectedVersion: alias.version };
      await api.put("/api/v1/models/{model_id}/aliases/{alias}", { parts, body });
      say(`alias ${alias.name} is removed`);
      onDone();
    } catch (failure) {
      complain(failure);
    }
  };
  if (model.aliases.length === 0) {
    return (
      <Empty>
        There is no alias. Give a version one:{" "}
        <Command text={`gangline model alias ${shellWord(model.name)} champion VERSION`} />
      </Empty>
    );
  }
  return (
    <ul class="plain">
      {model.aliases.map((alias) => (
        <li key={alias.name} class="row">
          <span>
            <strong>{alias.name}</strong> is version {alias.version}
          </span>
          {mayChange ? (
            <button type="button" aria-label={`Remove alias ${alias.name}`} onClick={() => remove(alias)}>
              Remove
            </button>
          ) : null}
        </li>
      ))}
    </ul>
  );
}

interface VersionRowProps {
  version: Version;
  mayChange: boolean;
  isArchived: boolean;
  ask: (action: Asked["action"]) => void;
}

function VersionRow({ version, mayChange, isArchived, ask }: VersionRowProps) {
  const { number } = version;
  return (
    <tr>
      <th scope="row">
        {number} {version.name === "" ? null : <Name text={version.name} />}
        {version.hasNotes ? <VersionNotes version={version} /> : null}
      </th>
      <td>{version.aliases.join(", ")}</td>
      <td>
        {Object.entries((version.metrics ?? {}) as Record<string, unknown>)
          .map(([key, value]) => `${key}: ${formatValue(value)}`)
          .join(", ")}
      </td>
      <td>
        <Name text={version.checkpointId} />
        <CopyButton text={version.checkpointId} label={`checkpoint ${version.checkpointId}`} />
      </td>
      <td>
        {version.trialId === "" ? "imported" : <a href={href(`/trials/${version.trialId}`)}>{version.trialId}</a>}
      </td>
      <td class="number">{version.totalBatches}</td>
      <td>
        <Name text={version.username} />
      </td>
      <td>
        <Time at={version.createdAt} />
      </td>
      <td>
        {mayChange ? (
          <span class="row">
            {isArchived ? null : (
              <button type="button" aria-label={`Set alias of version ${number}`} onClick={() => ask("alias")}>
                Set alias
              </button>
            )}
            <button
              type="button"
              class="danger"
              aria-label={`Delete version ${number}`}
              onClick={() => ask("delete version")}
            >
              Delete
            </button>
          </span>
        ) : null}
      </td>
    </tr>
  );
}

/** The notes of a version, which are read when they are opened. */
function VersionNotes({ version: { modelId, number } }: { version: Version }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Notes of version {number}</summary>
      {isOpen ? <ReadNotes modelId={modelId} number={number} /> : null}
    </details>
  );
}

function ReadNotes({ modelId, number }: { modelId: number; number: number }) {
  const parts = { model_id: modelId, number };
  const load = (signal: AbortSignal) => api.get("/api/v1/models/{model_id}/versions/{number}", { parts, signal });
  const { value, error } = useLive(`${modelId} ${number}`, load, 0);
  if (value === null) return error === null ? <Loading /> : <Problem error={error} />;
  return <Markdown text={value.version.notes} />;
}

interface DialogProps {
  model: ModelRecord;
  onClose: () => void;
}

/** Edits texts and labels. Only what was changed is sent. */
function EditDialog({ model: present, onClose }: DialogProps) {
  // What others change while the dialog is open is not the user's change.
  const [model] = useState(present);
  const edit = async (values: FormData) => {
    const { name, description, notes, labels } = model;
    const wanted = {
      name: String(values.get("name")).trim(),
      description: String(values.get("description")),
      // A browser sends line breaks of two characters.
      notes: String(values.get("notes")).replaceAll("\r\n", "\n"),
    };
    const body = {
      ...textChange({ name, description, notes: notes.replaceAll("\r\n", "\n") }, wanted),
      ...labelChange(labels, readLabels(String(values.get("labels")))),
    };
    if (Object.keys(body).length === 0) return;
    await api.patch("/api/v1/models/{model_id}", { parts: { model_id: model.id }, body });
    say(`the model ${model.name} is changed`);
  };
  return (
    <FormDialog title={`Edit the model ${model.name}`} action="Save" onSubmit={edit} onClose={onClose}>
      <label>
        Name <input name="name" required defaultValue={model.name} />
      </label>
      <label>
        Description <input name="description" defaultValue={model.description} />
      </label>
      <label>
        Labels, separated by commas <input name="labels" defaultValue={model.labels.join(", ")} />
      </label>
      <label>
        Notes, in Markdown
        <textarea name="notes" rows={10} defaultValue={model.notes} />
      </label>
      <Same command={`gangline model edit ${shellWord(model.name)} --notes-file FILE`} />
    </FormDialog>
  );
}

function DeleteDialog({ model, onClose }: DialogProps) {
  const remove = async () => {
    await api.delete("/api/v1/models/{model_id}", { parts: { model_id: model.id } });
    say(`the model ${model.name} is deleted`);
    go("/models");
  };
  return (
    <Confirm title={`Delete the model ${model.name}?`} action="Delete" onConfirm={remove} onClose={onClose}>
      <p>This is refused while it has versions; delete them first.</p>
      <Same command={`gangline model delete ${shellWord(model.name)}`} />
    </Confirm>
  );
}

function AliasDialog({ model, version, onClose }: DialogProps & { version: Version }) {
  const [alias, setAlias] = useState("");
  const present = model.aliases.find((each) => each.name === alias.trim())?.version ?? 0;
  const set = async () => {
    await api.put("/api/v1/models/{model_id}/aliases/{alias}", {
      parts: { model_id: model.id, alias: alias.trim() },
      body: { version: version.number, expectedVersion: present },
    });
    say(`version ${version.number} of ${model.name} is its ${alias.trim()}`);
  };
  const command = `gangline model alias ${shellWord(model.name)} ${shellWord(alias.trim() || "ALIAS")} ${version.number}`;
  return (
    <FormDialog title={`Alias of version ${version.number}`} action="Set" onSubmit={set} onClose={onClose}>
      <label>
        Alias{" "}
        <input
          required
          list="aliases"
          value={alias}
          placeholder="champion"
          onInput={(event) => setAlias(event.currentTarget.value)}
        />
      </label>
      <datalist id="aliases">
        {model.aliases.map((each) => (
          <option key={each.name} value={each.name} />
        ))}
      </datalist>
      <p class="quiet">
        {present === 0 ? "No version has this alias now." : `It moves from version ${present} to ${version.number}.`}
      </p>
      <Same command={command} />
    </FormDialog>
  );
}

function DeleteVersionDialog({ version, onClose }: { version: Version; onClose: () => void }) {
  const remove = async () => {
    const parts = { model_id: version.modelId, number: version.number };
    await api.delete("/api/v1/models/{model_id}/versions/{number}", { parts });
    say(`version ${version.number} of ${version.modelName} is deleted`);
  };
  const command = `gangline model delete-version ${shellWord(version.modelName)} ${version.number}`;
  return (
    <Confirm title={`Delete version ${version.number}?`} action="Delete" onConfirm={remove} onClose={onClose}>
      <p>Its checkpoint stays, but is not kept any more: its experiment's policy or its user may delete it.</p>
      <Same command={command} />
    </Confirm>
  );
}
