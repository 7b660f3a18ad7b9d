/** What an experiment does, how far it is, its best trial, and in words why it waits or has ended. */

import { formatNumber } from "../../lib/text";
import { Command, Name, Time } from "../../parts/basic";
import { href } from "../../router";
import type { Study } from "./study";

const WAITING_SHOWN = 5;

export function Overview({ study }: { study: Study }) {
  const { row, reason, tasks } = study;
  const waiting = tasks.filter(({ task }) => task.reason !== null);
  return (
    <dl>
      <dt>Progress</dt>
      <dd>
        <Progress study={study} />
      </dd>
      <dt>Best so far</dt>
      <dd>
        {row.bestTrial === null ? (
          "no trial has validated yet"
        ) : (
          <>
            {row.metric} {formatNumber(row.best)} of trial{" "}
            <a href={href(`/trials/${row.bestTrial}`)}>{row.bestTrial}</a>,{" "}
            {row.smallerIsBetter === false ? "greater" : "smaller"} is better
          </>
        )}
      </dd>
      {row.reason || reason !== null ? (
        <>
          <dt>Why</dt>
          <dd>
            {row.reason || reason?.message}
            {reason?.wouldStartIf ? ` It would go on if ${reason.wouldStartIf}.` : ""}
          </dd>
        </>
      ) : null}
      {waiting.length === 0 ? null : (
        <>
          <dt>Waiting trials</dt>
          <dd>
            {waiting.slice(0, WAITING_SHOWN).map(({ task }) => (
              <div key={task.trial.id}>
                <a href={href(`/trials/${task.trial.id}`)}>{task.trial.id}</a>: {task.reason?.message}
              </div>
            ))}
            {waiting.length > WAITING_SHOWN ? `${waiting.length - WAITING_SHOWN} more wait. ` : ""}
            <Command text={`gangline job explain ${row.id}`} />
          </dd>
        </>
      )}
      <dt>Description</dt>
      <dd>{row.description || <Command text={`gangline experiment set description ${row.id} TEXT`} />}</dd>
      <dt>Labels</dt>
      <dd>{row.labels.join(", ") || <Command text={`gangline experiment label add ${row.id} LABEL`} />}</dd>
      <dt>Owner</dt>
      <dd>
        <Name text={row.owner} />
      </dd>
      <dt>Project</dt>
      <dd>
        {row.workspace} / {row.project}
      </dd>
      <dt>Started</dt>
      <dd>
        <Time at={row.startTime} />
      </dd>
      <dt>Ended</dt>
      <dd>
        <Time at={row.endTime} />
      </dd>
      <dt>Searcher</dt>
      <dd>{row.searcher ?? "–"}</dd>
      <dt>Resources</dt>
      <dd>
        {row.slots ?? 0} slots for each trial in pool {row.pool}, priority {row.priority ?? "of the pool"}
        {row.maxSlots ? `, at most ${row.maxSlots} slots at a time` : ""}
      </dd>
      {row.forkedFrom === null ? null : (
        <>
          <dt>Forked from</dt>
          <dd>
            <a href={href(`/experiments/${row.forkedFrom}`)}>experiment {row.forkedFrom}</a>
          </dd>
        </>
      )}
    </dl>
  );
}

function Progress({ study: { row } }: { study: Study }) {
  const planned = row.numTrialsPlanned ?? row.numTrials;
  const words = `${row.numTrialsEnded} of ${planned} trials have ended; ${row.batches} batches, ${row.restarts} restarts`;
  if (row.progress === null) return <>{words}</>;
  return (
    <>
      <progress max={1} value={row.progress} aria-label="Progress of the experiment" /> {Math.floor(row.progress * 100)}{" "}
      %; {words}
    </>
  );
}
