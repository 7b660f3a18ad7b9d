/** Workspaces, the projects in each, and the experiments of a project. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { useFollowed } from "../api/changes";
import { ApiError, api, type Schemas } from "../api/client";
import type { Live } from "../api/live";
import { count } from "../lib/text";
import { Command, Confirm, Dialog, Empty, Loading, Name, Problem } from "../parts/basic";
import { href, place, setQuery, type ViewProps } from "../router";
import { hasRightsOf } from "../session";
import { complain, say } from "../toast";
import { ExperimentList } from "./experiment_list/list";

/** What a list of workspaces and one of projects have in common. */
interface Entry {
  id: number;
  name: string;
  username: string;
  archived: boolean;
  immutable: boolean;
  numExperiments: number;
}

/** Calls on one kind of entry. */
interface Kind<E extends Entry> {
  noun: string;
  path: (entry: E) => string;
  create: (name: string) => Promise<unknown>;
  rename: (entry: E, name: string) => Promise<unknown>;
  archive: (entry: E, isArchived: boolean) => Promise<unknown>;
  remove: (entry: E) => Promise<unknown>;
  command: string;
}

export function Workspaces() {
  const live = useHomes("workspaces", (signal) => api.get("/api/v1/workspaces", { signal }));
  const kind: Kind<Schemas["Workspace"]> = {
    noun: "workspace",
    path: (workspace) => `/workspaces/${workspace.id}`,
    create: (name) => api.post("/api/v1/workspaces", { body: { name } }),
    rename: ({ id }, name) =>
      api.patch("/api/v1/workspaces/{workspace_id}", { parts: { workspace_id: id }, body: { name } }),
    archive: ({ id }, isArchived) =>
      api.post(`/api/v1/workspaces/{workspace_id}/${isArchived ? "archive" : "unarchive"}`, {
        parts: { workspace_id: id },
      }),
    remove: ({ id }) => api.delete("/api/v1/workspaces/{workspace_id}", { parts: { workspace_id: id } }),
    command: "gangline workspace create NAME",
  };
  return (
    <>
      <h1>Workspaces</h1>
      <Entries
        kind={kind}
        live={live}
        entries={live.value?.workspaces}
        extra={(one) => count(one.numProjects, "project")}
      />
    </>
  );
}

export function Workspace({ ids }: ViewProps) {
  const id = Number(ids[0]);
  const live = useHomes(`workspace ${id}`, async (signal) => {
    const parts = { workspace_id: id };
    const [{ workspace }, { projects }] = await Promise.all([
      api.get("/api/v1/workspaces/{workspace_id}", { parts, signal }),
      api.get("/api/v1/workspaces/{workspace_id}/projects", { parts, signal }),
    ]);
    return { workspace, projects };
  });
  const name = live.value?.workspace.name ?? "";
  const kind: Kind<Schemas["Project"]> = {
    noun: "project",
    path: (project) => `/projects/${project.id}`,
    create: (text) =>
      api.post("/api/v1/workspaces/{workspace_id}/projects", { parts: { workspace_id: id }, body: { name: text } }),
    rename: (project, text) =>
      api.patch("/api/v1/projects/{project_id}", { parts: { project_id: project.id }, body: { name: text } }),
    archive: (project, isArchived) =>
      api.post(`/api/v1/projects/{project_id}/${isArchived ? "archive" : "unarchive"}`, {
        parts: { project_id: project.id },
      }),
    remove: (project) => api.delete("/api/v1/projects/{project_id}", { parts: { project_id: project.id } }),
    command: `gangline project create ${name} NAME`,
  };
  return (
    <>
      <p>
        <a href={href("/workspaces")}>Workspaces</a>
      </p>
      <h1>
        Workspace <Name text={name} />
      </h1>
      <Entries
        kind={kind}
        live={live}
        entries={live.value?.projects}
        extra={(one) => `${one.numActiveExperiments} active`}
      />
    </>
  );
}

export function Project({ ids }: ViewProps) {
  const id = Number(ids[0]);
  const live = useHomes(`project ${id}`, (signal) =>
    api.get("/api/v1/projects/{project_id}", { parts: { project_id: id }, signal }),
  );
  const project = live.value?.project;
  if (project === undefined) return live.error === null ? <Loading /> : <Problem error={live.error} />;
  return (
    <>
      <p>
        <a href={href("/workspaces")}>Workspaces</a> /{" "}
        <a href={href(`/workspaces/${project.workspaceId}`)}>
          <Name text={project.workspaceName} />
        </a>
      </p>
      <h1>
        Project <Name text={project.name} />
        {project.archived ? " (archived)" : ""}
      </h1>
      {project.description === "" ? null : <p>{project.description}</p>}
      <ExperimentList within={`projectId = ${id}`} hasViews={false} />
    </>
  );
}

/** Loads a value, and again when a workspace or a project changes. */
function useHomes<T>(key: string, load: (signal: AbortSignal) => Promise<T>): Live<T> {
  return useFollowed(key, { homes: true }, load, null);
}

interface EntriesProps<E extends Entry> {
  kind: Kind<E>;
  live: Live<unknown>;
  entries: E[] | undefined;
  extra: (entry: E) => string;
}

function Entries<E extends Entry>({ kind, live, entries, extra }: EntriesProps<E>) {
  const [asked, setAsked] = useState<{ what: "name" | "remove"; entry: E | null } | null>(null);
  const hasArchived = place.value.query.get("archived") === "yes";
  const shown = (entries ?? []).filter((entry) => hasArchived || !entry.archived);
  const attempt = async (action: Promise<unknown>, done: string) => {
    try {
      await action;
      say(done);
      live.reload();
      setAsked(null);
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
      complain(failure);
    }
  };
  return (
    <>
      <div class="row">
        <button type="button" class="main" onClick={() => setAsked({ what: "name", entry: null })}>
          New {kind.noun}
        </button>
        <label>
          <input
            type="checkbox"
            checked={hasArchived}
            onChange={(event) => setQuery({ archived: event.currentTarget.checked ? "yes" : "" })}
          />{" "}
          archived too
        </label>
        <Command text={kind.command} />
      </div>
      <Problem error={live.error} />
      {entries === undefined && live.error === null ? <Loading /> : null}
      {entries !== undefined && shown.length === 0 ? (
        <Empty>
          There is no {kind.noun} here yet. Make one: <Command text={kind.command} />
        </Empty>
      ) : null}
      {shown.length === 0 ? null : (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a table wider than the screen is scrolled by keyboard
        <section class="scroll" aria-label={`${kind.noun}s`} tabIndex={0}>
          <table>
            <thead>
              <tr>
                {["ID", "Name", "Owner", "Experiments", "Contents", "Actions"].map((head) => (
                  <th key={head} scope="col">
                    {head}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {shown.map((entry) => (
                <tr key={entry.id}>
                  <td>{entry.id}</td>
                  <td>
                    <a href={href(kind.path(entry))}>
                      <Name text={entry.name} />
                    </a>
                    {entry.archived ? " (archived)" : ""}
                  </td>
                  <td>
                    <Name text={entry.username} />
                  </td>
                  <td class="number">{entry.numExperiments}</td>
                  <td>{extra(entry)}</td>
                  <td>
                    {entry.immutable ? (
                      <span class="quiet">it belongs to the cluster</span>
                    ) : !hasRightsOf(entry.username) ? (
                      <span class="quiet">changed by its owner alone</span>
                    ) : (
                      <EntryActions
                        entry={entry}
                        onRename={() => setAsked({ what: "name", entry })}
                        onRemove={() => setAsked({ what: "remove", entry })}
                        onArchive={() =>
                          attempt(
                            kind.archive(entry, !entry.archived),
                            `${entry.name} is ${entry.archived ? "no longer archived" : "archived"}`,
                          )
                        }
                      />
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
      {asked?.what === "name" ? (
        <Naming
          title={asked.entry === null ? `New ${kind.noun}` : `Rename the ${kind.noun} ${asked.entry.name}`}
          former={asked.entry?.name ?? ""}
          onClose={() => setAsked(null)}
          onSave={(name) => {
            const { entry } = asked;
            return entry === null
              ? attempt(kind.create(name), `the ${kind.noun} ${name} is made`)
              : attempt(kind.rename(entry, name), `the ${kind.noun} is now ${name}`);
          }}
        />
      ) : null}
      {asked?.what === "remove" && asked.entry !== null ? (
        <Removal entry={asked.entry} kind={kind} onDone={live.reload} onClose={() => setAsked(null)} />
      ) : null}
    </>
  );
}

interface ActionsProps {
  entry: Entry;
  onRename: () => void;
  onArchive: () => void;
  onRemove: () => void;
}

function EntryActions({ entry, onRename, onArchive, onRemove }: ActionsProps) {
  const button = (text: string, onClick: () => void, kind: string): ComponentChildren => (
    <button type="button" class={kind} aria-label={`${text} ${entry.name}`} onClick={onClick}>
      {text}
    </button>
  );
  return (
    <span class="row">
      {button("Rename", onRename, "")}
      {button(entry.archived ? "Unarchive" : "Archive", onArchive, "")}
      {button("Delete", onRemove, "danger")}
    </span>
  );
}

interface RemovalProps<E extends Entry> {
  entry: E;
  kind: Kind<E>;
  onDone: () => void;
  onClose: () => void;
}

function Removal<E extends Entry>({ entry, kind, onDone, onClose }: RemovalProps<E>) {
  return (
    <Confirm
      title={`Delete the ${kind.noun} ${entry.name}?`}
      action="Delete"
      onClose={onClose}
      onConfirm={async () => {
        await kind.remove(entry);
        say(`the ${kind.noun} ${entry.name} is deleted`);
        onDone();
      }}
    >
      <p>This is refused while experiments are inside; move or delete them first.</p>
    </Confirm>
  );
}

interface NamingProps {
  title: string;
  former: string;
  onSave: (name: string) => Promise<void>;
  onClose: () => void;
}

function Naming({ title, former, onSave, onClose }: NamingProps) {
  const [name, setName] = useState(former);
  return (
    <Dialog title={title} onClose={onClose}>
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void onSave(name.trim());
        }}
      >
        <label>
          Name <input required value={name} onInput={(event) => setName(event.currentTarget.value)} />
        </label>
        <div class="row end">
          <button type="button" onClick={onClose}>
            Back
          </button>
          <button type="submit" class="main" disabled={name.trim() === "" || name.trim() === former}>
            Save
          </button>
        </div>
      </form>
    </Dialog>
  );
}
