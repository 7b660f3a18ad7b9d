/** A change of the queue: which one, what it would do, and only then doing it. */

import { useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { useLive } from "../api/live";
import type { Job } from "../api/live_parts";
import { commandOf, describeStanding, type QueueUpdate } from "../lib/queue";
import { count, formatUtc } from "../lib/text";
import { Dialog, Loading, Problem } from "../parts/basic";
import { Head, Same, TableFrame } from "../parts/form";
import { complain, say } from "../toast";

const KINDS = {
  priority: "Priority, from 1 (most urgent) to 99",
  weight: "Weight, in a fair_share pool",
  aheadOf: "Directly ahead of experiment",
  behindOf: "Directly behind experiment",
} as const;
type Kind = keyof typeof KINDS;
const ROWS_SHOWN = 50;

interface ChangeProps {
  job: Job;
  onChosen: (update: QueueUpdate) => void;
  onClose: () => void;
}

/** Asks which change is wanted. */
export function ChangeDialog({ job, onChosen, onClose }: ChangeProps) {
  const [kind, setKind] = useState<Kind>("priority");
  const present = { priority: job.priority ?? 50, weight: job.weight, aheadOf: "", behindOf: "" }[kind];
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    const value = Number(new FormData(event.currentTarget as HTMLFormElement).get("value"));
    onChosen({ jobId: Number(job.jobId), [kind]: value });
  };
  return (
    <Dialog title={`Change experiment ${job.jobId}`} onClose={onClose}>
      <form class="stack" onSubmit={submit}>
        <label>
          What{" "}
          <select value={kind} onChange={(event) => setKind(event.currentTarget.value as Kind)}>
            {Object.entries(KINDS).map(([value, title]) => (
              <option key={value} value={value}>
                {title}
              </option>
            ))}
          </select>
        </label>
        <label>
          Value{" "}
          <input
            key={kind}
            name="value"
            type="number"
            required
            min={kind === "weight" ? 0 : 1}
            max={kind === "priority" ? 99 : undefined}
            step={kind === "weight" ? "any" : 1}
            defaultValue={String(present)}
          />
        </label>
        <p class="quiet">It holds for all trials of the experiment.</p>
        <div class="row end">
          <button type="button" onClick={onClose}>
            Back
          </button>
          <button type="submit" class="main">
            Show the effect
          </button>
        </div>
      </form>
    </Dialog>
  );
}

/** Shows what the change would do, and makes it when the reader says so. */
export function EffectDialog({ update, onClose }: { update: QueueUpdate; onClose: () => void }) {
  const [isBusy, setBusy] = useState(false);
  const key = JSON.stringify(update);
  const preview = useLive(key, (signal) => api.post("/api/v1/job-queues/preview", { body: update, signal }), 0);
  const change = async () => {
    setBusy(true);
    try {
      await api.post("/api/v1/job-queues", { body: { updates: [update] } });
      say(`the queue is changed: experiment ${update.jobId}`);
    } catch (failure) {
      complain(failure);
    }
    onClose();
  };
  return (
    <Dialog title={`Effect on the queue of a change of experiment ${update.jobId}`} onClose={onClose}>
      <Problem error={preview.error} />
      {preview.value === null && preview.error === null ? <Loading /> : null}
      {preview.value === null ? null : <Differences preview={preview.value} />}
      <Same command={commandOf(update)} />
      <div class="row end">
        <button type="button" onClick={onClose}>
          Back
        </button>
        {preview.value === null ? null : (
          <button type="button" class="main" disabled={isBusy} onClick={change}>
            Do it
          </button>
        )}
      </div>
    </Dialog>
  );
}

function Differences({ preview }: { preview: Schemas["PreviewAnswer"] }) {
  const { differences, numWaiting, pool } = preview;
  if (differences.length === 0) {
    return <p>The planner would decide the same: nothing starts, stops or moves in {pool} by this change.</p>;
  }
  return (
    <>
      <p>
        {count(differences.length, "trial")} would be decided otherwise; {numWaiting} would wait in {pool} then.
      </p>
      <TableFrame label="What would change">
        <Head titles={["Trial", "Now", "Then"]} />
        <tbody>
          {differences.slice(0, ROWS_SHOWN).map(({ trialId, before, after }) => (
            <tr key={trialId}>
              <th scope="row">{trialId}</th>
              <Standing standing={before} />
              <Standing standing={after} />
            </tr>
          ))}
        </tbody>
      </TableFrame>
      {differences.length > ROWS_SHOWN ? <p>{differences.length - ROWS_SHOWN} more are not shown.</p> : null}
    </>
  );
}

function Standing({ standing }: { standing: Schemas["PlannedStanding"] }) {
  return (
    <td class="reason">
      {describeStanding(standing)}
      {standing.etaAt === null ? null : (
        <time dateTime={standing.etaAt} title={formatUtc(standing.etaAt)}>
          , starts about {new Date(standing.etaAt).toLocaleTimeString()}
        </time>
      )}
    </td>
  );
}
