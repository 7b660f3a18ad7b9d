/** The first view: what runs, what waits, and what failed lately. */

import { api, type Schemas } from "../api/client";
import { useLive } from "../api/live";
import { Age, Command, Empty, Loading, Name, Problem, StateBadge } from "../parts/basic";
import { href, place, setQuery } from "../router";
import { user } from "../session";

type Task = Schemas["Task"];
const FAILED_SHOWN = 10;
const ROWS_SHOWN = 50;

export function Home() {
  const isMine = place.value.query.get("of") !== "all";
  const name = user.value?.username ?? "";
  const tasks = useLive("tasks", (signal) => api.get("/api/v1/tasks", { signal }), 3);
  const failed = useLive(
    `failed ${isMine}`,
    (signal) => {
      const users = isMine ? { users: [name] } : {};
      return api.get("/api/v1/experiments", { query: { states: ["FAILED"], limit: FAILED_SHOWN, ...users }, signal });
    },
    10,
  );
  const shown = (tasks.value?.tasks ?? []).filter((task) => !isMine || task.owner === name);
  return (
    <>
      <div class="row">
        <h1>Home</h1>
        <Choice isMine={isMine} />
      </div>
      <Problem error={tasks.error ?? failed.error} />
      {tasks.value === null && tasks.error === null ? <Loading /> : null}
      {tasks.value === null ? null : (
        <>
          <TaskTable
            title="Running"
            tasks={shown.filter((task) => task.allocation !== null)}
            empty={
              <>
                Nothing runs. Start something: <Command text="gangline experiment create -f CONFIG.yaml FOLDER" />
              </>
            }
          />
          <TaskTable
            title="Waiting"
            tasks={shown.filter((task) => task.allocation === null)}
            empty={<>Nothing waits.</>}
          />
        </>
      )}
      <section aria-labelledby="failed">
        <h2 id="failed">Failed lately</h2>
        {failed.value?.experiments.length === 0 ? <Empty>No experiment in the list has failed.</Empty> : null}
        <ul class="plain">
          {failed.value?.experiments.map((experiment) => (
            <li key={experiment.id} class="row">
              <StateBadge state={experiment.state} outcome={experiment.outcome} />
              <a href={href(`/experiments/${experiment.id}`)}>
                {experiment.id} <Name text={experiment.name} />
              </a>
              <span class="quiet">
                <Age at={experiment.endTime} />
              </span>
              <span class="reason">{experiment.reason}</span>
            </li>
          ))}
        </ul>
      </section>
    </>
  );
}

function Choice({ isMine }: { isMine: boolean }) {
  const choose = (of: string) => () => setQuery({ of });
  return (
    <fieldset class="choice">
      <legend class="hidden">Whose work</legend>
      <button type="button" aria-pressed={isMine} onClick={choose("")}>
        Mine
      </button>
      <button type="button" aria-pressed={!isMine} onClick={choose("all")}>
        All
      </button>
    </fieldset>
  );
}

function TaskTable({ title, tasks, empty }: { title: string; tasks: Task[]; empty: preact.ComponentChildren }) {
  const id = title.toLowerCase();
  return (
    <section aria-labelledby={id}>
      <h2 id={id}>
        {title} ({tasks.length})
      </h2>
      {tasks.length === 0 ? (
        <Empty>{empty}</Empty>
      ) : (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a table wider than the screen is scrolled by keyboard
        <section class="scroll" aria-labelledby={id} tabIndex={0}>
          <table>
            <thead>
              <tr>
                <th scope="col">Trial</th>
                <th scope="col">Experiment</th>
                <th scope="col">Owner</th>
                <th scope="col">State</th>
                <th scope="col">Batches</th>
                <th scope="col">{title === "Waiting" ? "Why" : "Since"}</th>
              </tr>
            </thead>
            <tbody>
              {tasks.slice(0, ROWS_SHOWN).map((task) => (
                <TaskRow key={task.trial.id} task={task} />
              ))}
            </tbody>
          </table>
        </section>
      )}
      {tasks.length > ROWS_SHOWN ? <p>{tasks.length - ROWS_SHOWN} more are not shown here.</p> : null}
    </section>
  );
}

function TaskRow({ task }: { task: Task }) {
  const { trial } = task;
  return (
    <tr>
      <td>
        <a href={href(`/trials/${trial.id}`)}>{trial.id}</a>
      </td>
      <td>
        <a href={href(`/experiments/${trial.experimentId}`)}>
          <Name text={task.experimentName} />
        </a>
      </td>
      <td>{task.owner}</td>
      <td>
        <StateBadge state={trial.state} outcome={trial.outcome} />
      </td>
      <td class="number">{task.progress?.batchesCompleted ?? trial.totalBatchesProcessed}</td>
      <td class="reason">
        {task.allocation === null ? (task.reason?.message ?? "") : <Age at={task.allocation.startTime} />}
      </td>
    </tr>
  );
}
