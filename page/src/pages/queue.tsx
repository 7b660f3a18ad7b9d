/** The queue of a pool: its order, why each job waits, and changes, whose effect is shown before they are made. */

import { useState } from "preact/hooks";
import { useQueue } from "../api/changes";
import type { Job } from "../api/live_parts";
import { moveByOne, moveTo, type QueueUpdate, runningJobs, waitingJobs } from "../lib/queue";
import { count } from "../lib/text";
import { Age, Command, Empty, Loading, Name, StateBadge, Time } from "../parts/basic";
import { Head, Same, TableFrame } from "../parts/form";
import { href, place, setQuery } from "../router";
import { complain } from "../toast";
import { ChangeDialog, EffectDialog } from "./queue_change";
import "../administration.css";

const ROWS_SHOWN = 300;

export function Queue() {
  const jobs = useQueue();
  if (jobs === null) {
    return (
      <>
        <h1>Queue</h1>
        <Loading />
      </>
    );
  }
  const pools = [...new Set(jobs.map((job) => job.resourcePool))].sort();
  const pool = place.value.query.get("pool") ?? pools[0] ?? "";
  return (
    <>
      <div class="row">
        <h1>Queue</h1>
        {pools.length + (pools.includes(pool) ? 0 : 1) > 1 ? (
          <label>
            Pool{" "}
            <select value={pool} onChange={(event) => setQuery({ pool: event.currentTarget.value })}>
              {[...new Set([...pools, pool])].map((name) => (
                <option key={name} value={name}>
                  {name}
                </option>
              ))}
            </select>
          </label>
        ) : null}
      </div>
      <Waiting jobs={waitingJobs(jobs, pool)} pool={pool} />
      <Running jobs={runningJobs(jobs, pool)} />
      <Same command={pool === "" ? "gangline job list" : `gangline job list --pool ${pool}`} />
    </>
  );
}

function Waiting({ jobs, pool }: { jobs: Job[]; pool: string }) {
  const [changed, setChanged] = useState<Job | null>(null);
  const [update, setUpdate] = useState<QueueUpdate | null>(null);
  const [dragged, setDragged] = useState("");
  const [target, setTarget] = useState("");
  const move = (job: Job, step: -1 | 1) => {
    const wanted = moveByOne(jobs, job.trialId, step);
    if (wanted === null)
      complain(`nothing of another experiment is ${step < 0 ? "ahead of" : "behind"} ${job.trialId}`);
    else setUpdate(wanted);
  };
  const drop = (job: Job) => {
    const wanted = moveTo(jobs, dragged, job.trialId);
    setDragged("");
    setTarget("");
    if (wanted !== null) setUpdate(wanted);
  };
  return (
    <section aria-labelledby="waiting">
      <h2 id="waiting">Waiting ({jobs.length})</h2>
      {jobs.length === 0 ? (
        <Empty>
          Nothing waits{pool === "" ? "" : ` in ${pool}`}. Start something:{" "}
          <Command text="gangline experiment create -f CONFIG.yaml FOLDER" />
        </Empty>
      ) : (
        <>
          <p class="quiet">
            Drag a row to another place, or use its buttons; the effect is shown before anything is changed.
          </p>
          <TableFrame label="Jobs that wait">
            <Head
              titles={[
                "Place",
                "Trial",
                "Experiment",
                "User",
                "Priority",
                "Weight",
                "Slots",
                "Since",
                "Why",
                "What would start it",
                "Expected start",
                "Change",
              ]}
            />
            <tbody>
              {jobs.slice(0, ROWS_SHOWN).map((job) => (
                <tr
                  key={job.trialId}
                  draggable
                  class={target === job.trialId ? "target" : ""}
                  onDragStart={() => setDragged(job.trialId)}
                  onDragOver={(event) => {
                    event.preventDefault();
                    setTarget(job.trialId);
                  }}
                  onDragEnd={() => {
                    setDragged("");
                    setTarget("");
                  }}
                  onDrop={(event) => {
                    event.preventDefault();
                    drop(job);
                  }}
                >
                  <WaitingCells job={job} move={move} change={() => setChanged(job)} />
                </tr>
              ))}
            </tbody>
          </TableFrame>
          {jobs.length > ROWS_SHOWN ? <p>{count(jobs.length - ROWS_SHOWN, "further job")} not shown here.</p> : null}
        </>
      )}
      <ChangeDialogs changed={changed} setChanged={setChanged} update={update} setUpdate={setUpdate} />
    </section>
  );
}

interface CellsProps {
  job: Job;
  move: (job: Job, step: -1 | 1) => void;
  change: () => void;
}

function WaitingCells({ job, move, change }: CellsProps) {
  return (
    <>
      <td class="number" title={`${count(job.summary.jobsAhead, "job")} ahead`}>
        {job.queuePlace || "–"}
      </td>
      <th scope="row">
        <a href={href(`/trials/${job.trialId}`)}>{job.trialId}</a>
      </th>
      <td>
        <a href={href(`/experiments/${job.jobId}`)}>
          <Name text={job.name} />
        </a>
      </td>
      <td>
        <Name text={job.username} />
      </td>
      <td class="number">{job.priority ?? "–"}</td>
      <td class="number">{job.weight}</td>
      <td class="number">{job.requestedSlots}</td>
      <td>
        <Age at={job.submissionTime} />
      </td>
      <td class="reason">{job.reason?.message ?? (job.summary.state === "PAUSED" ? "paused" : "–")}</td>
      <td class="reason">{job.reason?.wouldStartIf || "–"}</td>
      <td>{job.etaTime === null ? "not known" : <Time at={job.etaTime} />}</td>
      <td>
        <button type="button" class="plain" aria-label={`Move ${job.trialId} up`} onClick={() => move(job, -1)}>
          ↑
        </button>
        <button type="button" class="plain" aria-label={`Move ${job.trialId} down`} onClick={() => move(job, 1)}>
          ↓
        </button>
        <button type="button" aria-label={`Change ${job.trialId}`} onClick={change}>
          Change
        </button>
      </td>
    </>
  );
}

function Running({ jobs }: { jobs: Job[] }) {
  const [changed, setChanged] = useState<Job | null>(null);
  const [update, setUpdate] = useState<QueueUpdate | null>(null);
  return (
    <section aria-labelledby="running">
      <h2 id="running">Holding slots ({jobs.length})</h2>
      {jobs.length === 0 ? (
        <Empty>Nothing holds slots here.</Empty>
      ) : (
        <TableFrame label="Jobs that hold slots">
          <Head titles={["Trial", "Experiment", "User", "State", "Priority", "Weight", "Slots", "Change"]} />
          <tbody>
            {jobs.slice(0, ROWS_SHOWN).map((job) => (
              <tr key={job.trialId}>
                <th scope="row">
                  <a href={href(`/trials/${job.trialId}`)}>{job.trialId}</a>
                </th>
                <td>
                  <a href={href(`/experiments/${job.jobId}`)}>
                    <Name text={job.name} />
                  </a>
                </td>
                <td>
                  <Name text={job.username} />
                </td>
                <td>
                  <StateBadge state={job.summary.state} />
                </td>
                <td class="number">{job.priority ?? "–"}</td>
                <td class="number">{job.weight}</td>
                <td class="number">{job.allocatedSlots}</td>
                <td>
                  <button type="button" aria-label={`Change ${job.trialId}`} onClick={() => setChanged(job)}>
                    Change
                  </button>
                </td>
              </tr>
            ))}
          </tbody>
        </TableFrame>
      )}
      {jobs.length > ROWS_SHOWN ? <p>{count(jobs.length - ROWS_SHOWN, "further job")} not shown here.</p> : null}
      <ChangeDialogs changed={changed} setChanged={setChanged} update={update} setUpdate={setUpdate} />
    </section>
  );
}

interface DialogsProps {
  changed: Job | null;
  setChanged: (job: Job | null) => void;
  update: QueueUpdate | null;
  setUpdate: (update: QueueUpdate | null) => void;
}

/** The dialogs of one change: what is wanted of a job, then its effect. */
function ChangeDialogs({ changed, setChanged, update, setUpdate }: DialogsProps) {
  return (
    <>
      {changed === null ? null : (
        <ChangeDialog
          job={changed}
          onClose={() => setChanged(null)}
          onChosen={(wanted) => {
            setChanged(null);
            setUpdate(wanted);
          }}
        />
      )}
      {update === null ? null : <EffectDialog update={update} onClose={() => setUpdate(null)} />}
    </>
  );
}
