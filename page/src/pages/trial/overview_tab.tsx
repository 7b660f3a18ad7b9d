/** What a trial is: its hyperparameters, its attempts, how it failed, and the strategy that was chosen for it. */

import type { ComponentChildren } from "preact";
import { api, type Schemas } from "../../api/client";
import { useLive } from "../../api/live";
import { flatten } from "../../lib/differences";
import { shownText } from "../../lib/log_lines";
import { count, formatBytes, formatDuration, formatNumber, formatValue } from "../../lib/text";
import { Command, Name, Problem, Time } from "../../parts/basic";
import { Head, TableFrame } from "../../parts/form";
import { href } from "../../router";

type TrialView = Schemas["TrialView"];
type ExitReport = Schemas["ExitReport"];
/** Seconds between two looks at what the trial has measured. */
const FUSION_SECONDS = 10;

export function Overview({ view }: { view: TrialView }) {
  const { trial, newest } = view;
  const { progress } = newest;
  return (
    <>
      <dl>
        <dt>Progress</dt>
        <dd>
          {progress?.batchesCompleted ?? trial.totalBatchesProcessed}
          {progress?.batchesTotal ? ` of ${progress.batchesTotal}` : ""} batches
          {progress ? `, ${formatNumber(progress.samplesPerSecond)} samples each second` : ""}
        </dd>
        <dt>Best validation</dt>
        <dd>
          {formatNumber(trial.searcherMetricValue)}
          {trial.searcherMetricValue === null ? "" : ` after ${trial.searcherMetricBatches} batches`}
        </dd>
        <dt>Why</dt>
        <dd>
          {trial.reason || view.reason?.message || "–"}
          {view.reason?.wouldStartIf ? ` It would start if ${view.reason.wouldStartIf}.` : ""}
        </dd>
        <dt>Started</dt>
        <dd>
          <Time at={trial.startTime} />
        </dd>
        <dt>Ended</dt>
        <dd>
          <Time at={trial.endTime} />
        </dd>
        <dt>Checkpoint</dt>
        <dd>
          {view.checkpointBatches === null
            ? "none"
            : `after ${view.checkpointBatches} batches; a failure now would cost ${view.batchesAtRisk} batches`}
        </dd>
        <dt>Seed</dt>
        <dd>{trial.seed}</dd>
      </dl>
      <Values title="Hyperparameters" values={trial.hparams} />
      <Attempts view={view} />
      {trial.lastFailure ? <Failure trialId={trial.id} failure={trial.lastFailure} /> : null}
      <Strategy choice={trial.strategyChoice} experimentId={trial.experimentId} />
      <Fusion trialId={trial.id} />
      <Values title="Metadata of its program" values={trial.metadata} />
    </>
  );
}

function Section({ title, children }: { title: string; children: ComponentChildren }) {
  const id = title.toLowerCase().replaceAll(" ", "-");
  return (
    <section aria-labelledby={id}>
      <h2 id={id}>{title}</h2>
      {children}
    </section>
  );
}

function Values({ title, values }: { title: string; values: unknown }) {
  const entries = Object.entries(flatten((values ?? {}) as object));
  if (entries.length === 0) return null;
  return (
    <Section title={title}>
      <dl>
        {entries.map(([name, value]) => (
          <Entry key={name} name={name}>
            {formatValue(value)}
          </Entry>
        ))}
      </dl>
    </Section>
  );
}

function Entry({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <>
      <dt>
        <Name text={name} />
      </dt>
      <dd>{children}</dd>
    </>
  );
}

const PHASES: [keyof Schemas["Timeline"], string][] = [
  ["queuedAt", "began to wait"],
  ["placedAt", "got its slots"],
  ["acceptedAt", "was accepted by its agents"],
  ["runnerUpAt", "trial runners had started"],
  ["rendezvousAt", "trial runners had found one another"],
  ["ranksUpAt", "ranks had started"],
  ["firstStepAt", "made its first step"],
];

function Attempts({ view }: { view: TrialView }) {
  const { trial, allocation } = view;
  const times = PHASES.filter(([name]) => trial.timeline[name] !== null);
  const start = trial.timeline[times[0]?.[0] ?? "queuedAt"];
  return (
    <Section title="Attempts">
      <p>
        {trial.attempts} so far, {trial.restarts} of them restarts after a failure.
        {allocation === null ? "" : ` It runs on ${allocation.members.map((member) => member.agentId).join(", ")}.`}
        {allocation?.shrinkReason ? ` ${allocation.shrinkReason}` : ""}
      </p>
      {trial.exclusions.map((exclusion) => (
        <p key={exclusion.agentId}>
          It avoids agent {exclusion.agentId}: {exclusion.reason}
        </p>
      ))}
      {times.length === 0 || !start ? null : (
        <dl aria-label="The start of the newest attempt">
          {times.map(([name, words]) => (
            <Entry key={name} name={words}>
              <Time at={trial.timeline[name]} />, after{" "}
              {formatDuration((Date.parse(trial.timeline[name] ?? "") - Date.parse(start)) / 1000)}
            </Entry>
          ))}
        </dl>
      )}
      <EndedAttempts trial={trial} />
      {trial.sizeChanges.map((change) => (
        <p key={change.time}>
          It went to {change.slots} of {change.fullSlots} slots: {change.reason}
        </p>
      ))}
      {(allocation?.exits ?? [])
        .filter((exit) => exit.kind !== trial.lastFailure?.kind)
        .map((exit) => (
          <p key={exit.agentId}>
            On {exit.agentId}: {exit.kind}. {exit.message}
          </p>
        ))}
    </Section>
  );
}

/** The attempts before the newest one, and that one once it has ended. The trial's record has the last 16. */
function EndedAttempts({ trial }: { trial: Schemas["Trial"] }) {
  if (trial.endedAttempts.length === 0) return null;
  return (
    <TableFrame label="Ended attempts">
      <Head titles={["Attempt", "Began", "Lasted", "Slots", "Start", "End", "Log"]} />
      <tbody>
        {trial.endedAttempts.toReversed().map((each) => (
          <tr key={each.attempt}>
            <th scope="row">{each.attempt}</th>
            <td>
              <Time at={each.startTime} />
            </td>
            <td>{lasted(each.startTime, each.endTime)}</td>
            <td>
              {count(each.gpuSlots + each.cpuSlots, "slot")} of {each.pool}
            </td>
            <td>{startOf(each.timeline)}</td>
            <td class="reason">{each.ending === "" ? "orderly" : shownText(each.ending)}</td>
            <td>
              <a
                href={href(`/trials/${trial.id}?tab=logs&at=${each.startTime ?? ""}`)}
                aria-label={`Log of attempt ${each.attempt}`}
              >
                Log
              </a>
            </td>
          </tr>
        ))}
      </tbody>
    </TableFrame>
  );
}

/** Returns how long each phase of a start took, the phases that were reached. */
function startOf(timeline: Schemas["Timeline"]): string {
  const times = PHASES.filter(([name]) => timeline[name] !== null);
  const spans = times.slice(1).map(([name, words], index) => {
    const former = times[index]?.[0] ?? name;
    return `${words} after ${lasted(timeline[former], timeline[name])}`;
  });
  return spans.join(", ") || "–";
}

function lasted(from: string | null, to: string | null): string {
  return from === null || to === null ? "–" : formatDuration((Date.parse(to) - Date.parse(from)) / 1000);
}

function Failure({ trialId, failure }: { trialId: string; failure: ExitReport }) {
  return (
    <Section title="Last failure">
      <p class="problem">
        {failure.rank === null ? "" : `Rank ${failure.rank} failed first: `}
        {shownText(failure.message)}
      </p>
      <p>
        {failure.kind} on agent {failure.agentId}
        {failure.exitCode === null ? "" : `, exit status ${failure.exitCode}`}
        {failure.signal === null ? "" : `, signal ${failure.signal}`}
        {failure.errorCode === "" ? "" : `, code ${failure.errorCode}`},{" "}
        <Time at={failure.failedAt ?? failure.endedAt} />
        {failure.batchesCompleted === null ? "" : `, after ${failure.batchesCompleted} batches`}.{" "}
        {failure.rank === null ? null : <a href={href(`/trials/${trialId}?tab=logs&ranks=${failure.rank}`)}>Its log</a>}
      </p>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it is scrolled by keyboard */}
      <pre tabIndex={0}>{failure.lastLines.map(shownText).join("\n")}</pre>
    </Section>
  );
}

interface Choice {
  choice?: unknown;
  rows?: Record<string, unknown>[];
}

/** The choice of `parallelism: auto`, with the strategies that it compared. */
function Strategy({ choice, experimentId }: { choice: unknown; experimentId: number }) {
  if (typeof choice !== "object" || choice === null) {
    return (
      <Section title="Strategy">
        <p>
          The <a href={href(`/experiments/${experimentId}?tab=config`)}>configuration</a> names it. With{" "}
          <code>parallelism: auto</code> the choice is explained here.
        </p>
      </Section>
    );
  }
  const { rows = [], ...others } = choice as Choice;
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  return (
    <Section title="Strategy">
      <dl>
        {Object.entries(flatten(others)).map(([name, value]) => (
          <Entry key={name} name={name}>
            {formatValue(value)}
          </Entry>
        ))}
      </dl>
      {rows.length === 0 ? null : (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a table wider than the screen is scrolled by keyboard
        <section class="scroll" aria-label="Strategies that were compared" tabIndex={0}>
          <table>
            <thead>
              <tr>
                {columns.map((column) => (
                  <th key={column} scope="col">
                    {column}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={JSON.stringify(row)}>
                  {columns.map((column) => (
                    <td key={column}>{formatValue(row[column])}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
    </Section>
  );
}

/** The sizes of buckets that this trial measured, and what they gain. Later trials of its kind begin with them. */
function Fusion({ trialId }: { trialId: string }) {
  const live = useLive(
    `fusion ${trialId}`,
    (signal) => api.get("/api/v1/fusion", { query: { trialId }, signal }),
    FUSION_SECONDS,
  );
  return (
    <Section title="Tensor fusion">
      <Problem error={live.error} />
      {live.value?.records.length === 0 ? (
        <p>
          This trial has measured no sizes of buckets: it runs on one slot, uses those of an earlier trial, which its
          log names, or is still at it. All of them: <Command text="gangline fusion list" />
        </p>
      ) : null}
      {live.value?.records.map((record) => (
        <p key={record.key}>
          {record.summary}: buckets of {record.bucketBytes.map(formatBytes).join(", ")}; a step takes{" "}
          {formatNumber(record.tunedStepSeconds)} s, with the usual buckets {formatNumber(record.defaultStepSeconds)} s.{" "}
          To have it tuned anew: <Command text={`gangline fusion forget ${record.key}`} />
        </p>
      ))}
    </Section>
  );
}
