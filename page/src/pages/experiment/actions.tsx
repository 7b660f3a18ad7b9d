/** What a user does with one experiment. What cannot be undone asks first, and names the same command. */

import { useState } from "preact/hooks";
import { api, type Schemas } from "../../api/client";
import { labelChange, readLabels } from "../../lib/edits";
import { Command, Confirm, Dialog } from "../../parts/basic";
import { go } from "../../router";
import { hasRightsOf } from "../../session";
import { complain, say } from "../../toast";
import { ConfigEditor } from "./config_editor";
import type { Study, StudyRow } from "./study";

interface Action {
  title: string;
  isPossible: (row: StudyRow) => boolean;
  /** What it does; empty for one that can be undone, which does not ask. */
  consequence: string;
  /** Whether the owner and administrators alone may do it. */
  isOfOwner?: boolean;
}

const ACTIONS = {
  pause: {
    title: "Pause",
    isPossible: (row) => row.outcome === null && row.state !== "PAUSED",
    consequence: "",
  },
  activate: { title: "Activate", isPossible: (row) => row.state === "PAUSED", consequence: "" },
  cancel: {
    title: "Cancel",
    isPossible: (row) => row.outcome === null,
    consequence: "Its trials save a checkpoint and end.",
  },
  kill: {
    title: "Kill",
    isPossible: (row) => row.outcome === null,
    consequence: "Its trials end at once, and what they trained since their last checkpoint is lost.",
  },
  archive: { title: "Archive", isPossible: (row) => row.outcome !== null && !row.archived, consequence: "" },
  unarchive: { title: "Unarchive", isPossible: (row) => row.archived, consequence: "" },
  delete: {
    title: "Delete",
    isPossible: (row) => row.outcome !== null && !row.deleting,
    consequence: "Its checkpoints, TensorBoard files, logs and metrics are deleted for good.",
    isOfOwner: true,
  },
} satisfies Record<string, Action>;
type Name = keyof typeof ACTIONS;

export function StudyActions({ study }: { study: Study }) {
  const { row } = study;
  const [asked, setAsked] = useState<Name | "edit" | "fork" | "continue" | null>(null);
  const close = () => setAsked(null);
  const isOwned = hasRightsOf(row.owner);
  const run = async (name: Name) => {
    const parts = { experiment_id: row.id };
    if (name === "delete") await api.delete("/api/v1/experiments/{experiment_id}", { parts });
    else await api.post(`/api/v1/experiments/{experiment_id}/${name}`, { parts });
    say(`${ACTIONS[name].title}: done for experiment ${row.id}`);
    if (name === "delete") go("/experiments");
  };
  const press = (name: Name) => {
    if (ACTIONS[name].consequence === "") run(name).catch(complain);
    else setAsked(name);
  };
  const isSingle = row.numTrials === 1 && row.outcome !== null;
  return (
    <>
      <fieldset class="choice wrap">
        <legend class="hidden">Actions</legend>
        {(Object.keys(ACTIONS) as Name[])
          .filter((name) => ACTIONS[name].isPossible(row) && (isOwned || !isForOwner(name)))
          .map((name) => (
            <button
              key={name}
              type="button"
              class={name === "kill" || name === "delete" ? "danger" : ""}
              onClick={() => press(name)}
            >
              {ACTIONS[name].title}
            </button>
          ))}
        <button type="button" onClick={() => setAsked("edit")}>
          Edit
        </button>
        {/* A fork has the code of its source, which its owner and administrators read. */}
        {isOwned ? (
          <button type="button" onClick={() => setAsked("fork")}>
            Fork
          </button>
        ) : null}
        {isOwned && isSingle ? (
          <button type="button" onClick={() => setAsked("continue")}>
            Continue
          </button>
        ) : null}
      </fieldset>
      {isOwned ? null : (
        <span class="quiet">Only {row.owner} and administrators fork, continue and delete this experiment.</span>
      )}
      {asked === "edit" ? <Editor row={row} onClose={close} /> : null}
      {asked === "fork" || asked === "continue" ? <ConfigEditor kind={asked} study={study} onClose={close} /> : null}
      {asked !== null && asked in ACTIONS ? (
        <Confirm
          title={`${ACTIONS[asked as Name].title} experiment ${row.id}?`}
          action={ACTIONS[asked as Name].title}
          onConfirm={() => run(asked as Name)}
          onClose={close}
        >
          <p>{ACTIONS[asked as Name].consequence}</p>
          <p>
            The same on the command line: <Command text={`gangline experiment ${asked} ${row.id}`} />
          </p>
        </Confirm>
      ) : null}
    </>
  );
}

function isForOwner(name: Name): boolean {
  const action: Action = ACTIONS[name];
  return action.isOfOwner === true;
}

/** Edits the texts, the labels and the priority. Only what was changed is sent. */
function Editor({ row, onClose }: { row: StudyRow; onClose: () => void }) {
  // What others change while the dialog is open is not the user's change.
  const [shown] = useState(row);
  const [name, setName] = useState(row.name);
  const [description, setDescription] = useState(row.description ?? "");
  const [labels, setLabels] = useState(row.labels.join(", "));
  const [priority, setPriority] = useState(row.priority === null ? "" : String(row.priority));
  const save = async (event: Event) => {
    event.preventDefault();
    const body: Schemas["PatchExperiment"] = {};
    if (name !== shown.name) body.name = name;
    if (description !== (shown.description ?? "")) body.description = description;
    Object.assign(body, labelChange(shown.labels, readLabels(labels)));
    if (priority !== "" && Number(priority) !== shown.priority) {
      body.resources = { priority: Number(priority) } as Schemas["ResourcePatch"];
    }
    try {
      await api.patch("/api/v1/experiments/{experiment_id}", { parts: { experiment_id: row.id }, body });
      say(`experiment ${row.id} is changed`);
      onClose();
    } catch (failure) {
      complain(failure);
    }
  };
  return (
    <Dialog title={`Edit experiment ${row.id}`} onClose={onClose}>
      <form class="stack" onSubmit={save}>
        <label>
          Name <input required value={name} onInput={(event) => setName(event.currentTarget.value)} />
        </label>
        <label>
          Description{" "}
          <textarea rows={3} value={description} onInput={(event) => setDescription(event.currentTarget.value)} />
        </label>
        <label>
          Labels, separated by commas <input value={labels} onInput={(event) => setLabels(event.currentTarget.value)} />
        </label>
        <label>
          Priority, 1 (most urgent) to 99{" "}
          <input
            type="number"
            min="1"
            max="99"
            disabled={row.outcome !== null}
            value={priority}
            onInput={(event) => setPriority(event.currentTarget.value)}
          />
        </label>
        <p>
          The same on the command line: <Command text={`gangline experiment set name ${row.id} TEXT`} />,{" "}
          <Command text={`gangline experiment set priority ${row.id} 10`} />
        </p>
        <div class="row end">
          <button type="button" onClick={onClose}>
            Back
          </button>
          <button type="submit" class="main">
            Save
          </button>
        </div>
      </form>
    </Dialog>
  );
}
