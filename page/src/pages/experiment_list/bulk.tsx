/** Actions on all experiments that are selected: counted first, then confirmed, then carried out and listed. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, api, type Schemas } from "../../api/client";
import { count } from "../../lib/text";
import { Command, Dialog, Problem } from "../../parts/basic";
import { href } from "../../router";
import { user } from "../../session";
import { say } from "../../toast";

type Action = Schemas["BulkAction"];
type Item = Schemas["BulkItem"];
/** The experiments that an order names. */
export type Named = { ids: number[] } | { filter: string };

const ACTIONS: { action: Action; title: string; command?: string; warning?: string }[] = [
  { action: "PAUSE", title: "Pause", command: "pause" },
  { action: "ACTIVATE", title: "Activate", command: "activate" },
  { action: "LABEL", title: "Label" },
  { action: "MOVE", title: "Move" },
  { action: "ARCHIVE", title: "Archive", command: "archive" },
  { action: "UNARCHIVE", title: "Unarchive", command: "unarchive" },
  {
    action: "CANCEL",
    title: "Cancel",
    command: "cancel",
    warning: "Their trials end after a checkpoint, and do not go on.",
  },
  {
    action: "KILL",
    title: "Kill",
    command: "kill",
    warning: "Their trials end at once, and what they trained since their last checkpoint is lost.",
  },
  {
    action: "DELETE",
    title: "Delete",
    command: "delete",
    warning: "Their records, logs, metrics and checkpoints are deleted for good. Only ended experiments are deleted.",
  },
];
const COMMAND_IDS = 20;

interface Props {
  named: Named;
  numSelected: number;
  onDone: () => void;
}

export function BulkActions({ named, numSelected, onDone }: Props) {
  const [asked, setAsked] = useState<Action | null>(null);
  return (
    <>
      <fieldset class="choice wrap" disabled={numSelected === 0}>
        <legend class="hidden">Actions on the selected experiments</legend>
        {ACTIONS.map(({ action, title, warning }) => (
          <button key={action} type="button" class={warning ? "danger" : ""} onClick={() => setAsked(action)}>
            {title}
          </button>
        ))}
      </fieldset>
      {asked === null ? null : (
        <BulkDialog action={asked} named={named} onClose={() => setAsked(null)} onDone={onDone} />
      )}
    </>
  );
}

interface DialogProps {
  action: Action;
  named: Named;
  onClose: () => void;
  onDone: () => void;
}

interface Progress {
  numDone: number;
  failed: Item[];
  isOver: boolean;
}

function BulkDialog({ action, named, onClose, onDone }: DialogProps) {
  const { title, command, warning } = ACTIONS.find((each) => each.action === action) ?? { title: action };
  const [counted, setCounted] = useState<{ numMatching: number; numOwned: number } | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [progress, setProgress] = useState<Progress | null>(null);
  const [labels, setLabels] = useState("");
  const [isRemoving, setRemoving] = useState(false);
  const [projectId, setProjectId] = useState(0);
  // The dialog is about what was selected when it was opened.
  const [fixed] = useState(named);
  const show = (failure: unknown) => {
    if (!(failure instanceof ApiError)) throw failure;
    setError(failure);
  };

  useEffect(() => {
    // Counting does not depend on the action's own values.
    order({ ...fixed, action: "PAUSE", dryRun: true }).then(setCounted, show);
  }, [fixed]);

  const words = labels
    .split(",")
    .map((label) => label.trim())
    .filter((label) => label !== "");
  const isReady = (action !== "LABEL" || words.length > 0) && (action !== "MOVE" || projectId > 0);
  const run = async () => {
    if (counted === null) return;
    setError(null);
    const body = {
      ...fixed,
      action,
      expected: counted.numMatching,
      ...(action === "MOVE" ? { projectId } : {}),
      ...(action === "LABEL" ? { [isRemoving ? "removeLabels" : "addLabels"]: words } : {}),
    };
    let done: Progress = { numDone: 0, failed: [], isOver: false };
    setProgress(done);
    try {
      for (let afterId: number | null = 0; afterId !== null; ) {
        const answer: Schemas["BulkAnswer"] = await order({ ...body, afterId });
        const failed = [...done.failed, ...answer.results.filter((item) => item.code !== null)];
        done = { numDone: done.numDone + answer.numChanged, failed, isOver: answer.nextAfterId === null };
        setProgress(done);
        afterId = answer.nextAfterId;
      }
    } catch (failure) {
      setProgress(done.numDone === 0 ? null : { ...done, isOver: true });
      show(failure);
      return;
    }
    onDone();
    if (done.failed.length > 0) return;
    say(`${title}: done for ${count(done.numDone, "experiment")}`);
    onClose();
  };

  const number = counted?.numMatching ?? 0;
  const isOwnAlone = action === "DELETE" && user.value?.admin !== true;
  const isPossible = counted !== null && (isOwnAlone ? counted.numOwned : number) > 0;
  const isRunning = progress !== null && !progress.isOver;
  return (
    <Dialog title={`${title} ${counted === null ? "experiments" : count(number, "experiment")}?`} onClose={onClose}>
      <div class="stack">
        <Problem error={error} />
        <p role="status">
          {counted === null && error === null ? "Counting…" : null}
          {counted === null ? null : `${count(number, "experiment")} match, ${counted.numOwned} of them are yours.`}
        </p>
        {warning ? <p>{warning}</p> : null}
        {isOwnAlone ? <p>Only your own are deleted; those of others need their owners or an administrator.</p> : null}
        {action === "LABEL" ? (
          <>
            <label>
              Labels, separated by commas{" "}
              <input value={labels} onInput={(event) => setLabels(event.currentTarget.value)} />
            </label>
            <label>
              <input
                type="checkbox"
                checked={isRemoving}
                onChange={(event) => setRemoving(event.currentTarget.checked)}
              />{" "}
              remove them
            </label>
          </>
        ) : null}
        {action === "MOVE" ? <ProjectChoice value={projectId} onChange={setProjectId} /> : null}
        {command && "ids" in fixed && fixed.ids.length <= COMMAND_IDS ? (
          <p>
            The same on the command line: <Command text={`gangline experiment ${command} ${fixed.ids.join(" ")}`} />
          </p>
        ) : null}
        {progress === null ? null : <Results progress={progress} total={number} />}
        <div class="row end">
          <button type="button" onClick={onClose}>
            {progress?.isOver ? "Close" : "Back"}
          </button>
          {progress?.isOver ? null : (
            <button
              type="button"
              class={warning ? "danger" : "main"}
              disabled={!isPossible || !isReady || isRunning}
              onClick={run}
            >
              {title}
            </button>
          )}
        </div>
      </div>
    </Dialog>
  );
}

function Results({ progress, total }: { progress: Progress; total: number }) {
  const { numDone, failed } = progress;
  return (
    <>
      <p role="status">
        Done for {numDone} of {total}
        {failed.length > 0 ? `, not for ${failed.length}:` : "."}
      </p>
      {failed.length === 0 ? null : (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: it is scrolled by keyboard
        <ul class="scroll tall" tabIndex={0}>
          {failed.map((item) => (
            <li key={item.id}>
              <a href={href(`/experiments/${item.id}`)}>{item.id}</a>: {item.detail}
            </li>
          ))}
        </ul>
      )}
    </>
  );
}

function ProjectChoice({ value, onChange }: { value: number; onChange: (id: number) => void }) {
  const [projects, setProjects] = useState<Schemas["Project"][]>([]);
  const [error, setError] = useState<ApiError | null>(null);
  useEffect(() => {
    const load = async () => {
      const { workspaces } = await api.get("/api/v1/workspaces", { query: { archived: false } });
      const lists = await Promise.all(
        workspaces.map(({ id }) =>
          api.get("/api/v1/workspaces/{workspace_id}/projects", { parts: { workspace_id: id } }),
        ),
      );
      setProjects(lists.flatMap((list) => list.projects).filter((project) => !project.archived));
    };
    load().catch((failure) => {
      if (!(failure instanceof ApiError)) throw failure;
      setError(failure);
    });
  }, []);
  return (
    <>
      <Problem error={error} />
      <label>
        To the project{" "}
        <select value={value} onChange={(event) => onChange(Number(event.currentTarget.value))}>
          <option value={0}>choose one</option>
          {projects.map((project) => (
            <option key={project.id} value={project.id}>
              {project.workspaceName} / {project.name}
            </option>
          ))}
        </select>
      </label>
    </>
  );
}

function order(body: Partial<Schemas["BulkBody"]> & { action: Action }) {
  return api.post("/api/v1/bulk/experiments", { body: body as Schemas["BulkBody"] });
}
