/** Commands, shells and notebooks on slots: started, opened, read and ended. */

import { useState } from "preact/hooks";
import { ApiError, api, type Schemas } from "../api/client";
import { useLive } from "../api/live";
import { Age, Command, Confirm, Dialog, Empty, Loading, Name, Problem, StateBadge } from "../parts/basic";
import { FormDialog, Head, Same, TableFrame } from "../parts/form";
import { basePath, href, place, setQuery } from "../router";
import { hasRightsOf, user } from "../session";
import { say } from "../toast";
import "../administration.css";

type Experiment = Schemas["Experiment"];
type Kind = Schemas["TaskKind"];
const GROUPS: Record<Kind, string> = { COMMAND: "cmd", SHELL: "shell", NOTEBOOK: "notebook" };
const KINDS: Kind[] = ["NOTEBOOK", "SHELL", "COMMAND"];
const LIVE_STATES = ["QUEUED", "STARTING", "RUNNING", "STOPPING", "PAUSED"] as const;
const SHOWN = 100;
const EXAMPLES: Record<Kind, string> = {
  NOTEBOOK: "resources: {slots: 1}\nidle_timeout: 2h\n",
  SHELL: "resources: {slots: 1}\n",
  COMMAND: "entrypoint: [nvidia-smi, -L]\nresources: {slots: 1}\n",
};

interface Asked {
  action: "open" | "kill";
  task: Experiment;
  kind: Kind;
}

export function Tasks() {
  const [isStarting, setStarting] = useState(false);
  const [asked, setAsked] = useState<Asked | null>(null);
  const [round, setRound] = useState(0);
  const isAll = place.value.query.get("ended") === "yes";
  const close = () => {
    setAsked(null);
    setStarting(false);
    setRound((former) => former + 1);
  };
  return (
    <>
      <div class="row">
        <h1>Tasks</h1>
        <button type="button" class="main" onClick={() => setStarting(true)}>
          Start a task
        </button>
        <label>
          <input
            type="checkbox"
            checked={isAll}
            onChange={(event) => setQuery({ ended: event.currentTarget.checked ? "yes" : "" })}
          />{" "}
          ended ones as well
        </label>
      </div>
      {KINDS.map((kind) => (
        <TaskList
          key={kind}
          kind={kind}
          isAll={isAll}
          round={round}
          ask={(action, task) => setAsked({ action, task, kind })}
        />
      ))}
      <section aria-labelledby="tensorboard">
        <h2 id="tensorboard">TensorBoard</h2>
        <p>
          It runs on your own machine and takes no slots. For an experiment or a trial:{" "}
          <Command text="gangline tensorboard ID" />
        </p>
      </section>
      {isStarting ? <StartDialog onClose={close} /> : null}
      {asked?.action === "open" ? <OpenDialog task={asked.task} onClose={close} /> : null}
      {asked?.action === "kill" ? <KillDialog task={asked.task} kind={asked.kind} onClose={close} /> : null}
    </>
  );
}

interface ListProps {
  kind: Kind;
  isAll: boolean;
  round: number;
  ask: (action: "open" | "kill", task: Experiment) => void;
}

function TaskList({ kind, isAll, round, ask }: ListProps) {
  const noun = kind.toLowerCase();
  const live = useLive(
    `${kind} ${isAll} ${round}`,
    (signal) => {
      const states = isAll ? {} : { states: [...LIVE_STATES] };
      return api.get("/api/v1/experiments", { query: { taskKinds: [kind], limit: SHOWN, ...states }, signal });
    },
    2,
  );
  const tasks = live.value?.experiments ?? [];
  const command = `gangline ${GROUPS[kind]} list${isAll ? " --all" : ""}`;
  return (
    <section aria-labelledby={`list-${noun}`}>
      <h2 id={`list-${noun}`}>
        {noun[0]?.toUpperCase()}
        {noun.slice(1)}s
      </h2>
      <Problem error={live.error} />
      {live.value === null && live.error === null ? <Loading /> : null}
      {live.value !== null && tasks.length === 0 ? (
        <Empty>
          No {noun}. Start one:{" "}
          <Command text={`gangline ${GROUPS[kind]} ${kind === "COMMAND" ? "run -- COMMAND" : "start"}`} />
        </Empty>
      ) : null}
      {tasks.length === 0 ? null : (
        <TableFrame label={`List of ${noun}s`}>
          <Head titles={["Number", "Name", "State", "User", "Started", "Why", "Actions"]} />
          <tbody>
            {tasks.map((task) => (
              <TaskRow key={task.id} task={task} kind={kind} ask={ask} />
            ))}
          </tbody>
        </TableFrame>
      )}
      {(live.value?.pagination.total ?? 0) > tasks.length ? (
        <p>
          The newest {SHOWN} are shown; all of them: <Command text={command} />
        </p>
      ) : null}
    </section>
  );
}

function TaskRow({ task, kind, ask }: { task: Experiment; kind: Kind; ask: ListProps["ask"] }) {
  const mayOpen = hasRightsOf(task.username);
  const isLive = task.outcome === null;
  return (
    <tr>
      <th scope="row">{task.id}</th>
      <td>
        <Name text={task.name} />
      </td>
      <td>
        <StateBadge state={task.state} outcome={task.outcome} />
      </td>
      <td>
        <Name text={task.username} />
      </td>
      <td>
        <Age at={task.startTime} />
      </td>
      <td class="reason">{task.reason || "–"}</td>
      <td>
        <span class="row">
          {!isLive || kind === "COMMAND" ? null : mayOpen ? (
            <button type="button" aria-label={`Open ${task.id}`} onClick={() => ask("open", task)}>
              Open
            </button>
          ) : (
            <span class="quiet">opened by its user alone</span>
          )}
          <a href={href(`/trials/${task.id}.1?tab=logs`)} aria-label={`Logs of ${task.id}`}>
            Logs
          </a>
          {isLive ? (
            <button type="button" class="danger" aria-label={`Kill ${task.id}`} onClick={() => ask("kill", task)}>
              Kill
            </button>
          ) : null}
        </span>
      </td>
    </tr>
  );
}

function StartDialog({ onClose }: { onClose: () => void }) {
  const [kind, setKind] = useState<Kind>("NOTEBOOK");
  const [config, setConfig] = useState(EXAMPLES.NOTEBOOK);
  const [template, setTemplate] = useState("");
  const templates = useLive("templates", (signal) => api.get("/api/v1/templates", { signal }), 0);
  const choose = (next: Kind) => {
    if (config === EXAMPLES[kind]) setConfig(EXAMPLES[next]);
    setKind(next);
  };
  const start = async () => {
    const body = { kind, config, ...(template === "" ? {} : { template }) };
    const { experiment, warnings } = await api.post("/api/v1/tasks", { body });
    say([`${kind.toLowerCase()} ${experiment.id} is started`, ...warnings].join("; "));
  };
  const options = `--config-file FILE.yaml${template === "" ? "" : ` --template ${template}`} --detach`;
  return (
    <FormDialog title="Start a task" action="Start" onSubmit={start} onClose={onClose}>
      <label>
        Kind{" "}
        <select value={kind} onChange={(event) => choose(event.currentTarget.value as Kind)}>
          {KINDS.map((each) => (
            <option key={each} value={each}>
              {each.toLowerCase()}
            </option>
          ))}
        </select>
      </label>
      <label>
        Template{" "}
        <select value={template} onChange={(event) => setTemplate(event.currentTarget.value)}>
          <option value="">none</option>
          {templates.value?.templates.map(({ name }) => (
            <option key={name} value={name}>
              {name}
            </option>
          ))}
        </select>
      </label>
      <label>
        Configuration, as YAML
        <textarea
          class="code"
          spellcheck={false}
          value={config}
          onInput={(event) => setConfig(event.currentTarget.value)}
        />
      </label>
      <p class="quiet">A task that needs files of yours is started on the command line, with -c FOLDER.</p>
      <Same
        command={`gangline ${GROUPS[kind]} ${kind === "COMMAND" ? `run ${options} -- COMMAND` : `start ${options}`}`}
      />
    </FormDialog>
  );
}

/** The address holds a token of the caller, so it is asked for when it is used. */
function OpenDialog({ task, onClose }: { task: Experiment; onClose: () => void }) {
  const isNotebook = (task.config as { task?: { kind?: string } } | null)?.task?.kind === "NOTEBOOK";
  const live = useLive(
    `access ${task.id}`,
    async (signal) => {
      const parts = { experiment_id: task.id };
      const [{ access }, { experiment }] = await Promise.all([
        api.get("/api/v1/tasks/{experiment_id}/access", { parts, signal }),
        api.get("/api/v1/experiments/{experiment_id}", { parts, signal }),
      ]);
      if (experiment.outcome !== null) throw new ApiError(410, "task.over", `it has ended: ${experiment.reason}`);
      return access;
    },
    1,
  );
  const path = live.value?.path ?? "";
  const isReady = live.value?.isReady ?? false;
  return (
    <Dialog title={`Open ${task.id}`} onClose={onClose}>
      <Problem error={live.error} />
      {!isReady && live.error === null ? <p role="status">It is not ready yet; this goes on by itself…</p> : null}
      {isReady && isNotebook && basePath() !== "/" ? (
        <p>
          Jupyter's links begin at the root of an address, and this page is below {basePath()}. The command opens the
          notebook at the gateway's own address.
        </p>
      ) : null}
      {isReady && isNotebook && basePath() === "/" ? (
        <p>
          <a href={basePath() + path.replace(/^\//, "")} target="_blank" rel="noopener noreferrer">
            Open notebook {task.id} in a new tab
          </a>
        </p>
      ) : null}
      {isReady && isNotebook && task.username !== user.value?.username ? (
        <p>It is the notebook of another user, whose pages share this address. Open the link in a private window.</p>
      ) : null}
      {isReady && !isNotebook ? <p>A shell is opened with ssh, which this command starts.</p> : null}
      <Same command={`gangline ${isNotebook ? "notebook" : "shell"} open ${task.id}`} />
      <div class="row end">
        <button type="button" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

function KillDialog({ task, kind, onClose }: { task: Experiment; kind: Kind; onClose: () => void }) {
  const kill = async () => {
    await api.post("/api/v1/experiments/{experiment_id}/kill", { parts: { experiment_id: task.id } });
    say(`${kind.toLowerCase()} ${task.id} is ended`);
  };
  return (
    <Confirm title={`Kill ${kind.toLowerCase()} ${task.id}?`} action="Kill" onConfirm={kill} onClose={onClose}>
      <p>It ends at once. What it has not written to a shared folder is lost.</p>
      <Same command={`gangline ${GROUPS[kind]} kill ${task.id}`} />
    </Confirm>
  );
}
