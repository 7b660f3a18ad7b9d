/** One trial: its metrics while they come in, its log, its checkpoints, its attempts, and its hyperparameters. */

import { useState } from "preact/hooks";
import { useFollowed } from "../api/changes";
import { api, type Schemas } from "../api/client";
import { useLive } from "../api/live";
import { Command, Confirm, CopyButton, Loading, Problem, StateBadge } from "../parts/basic";
import { LogView } from "../parts/log_view";
import { Tabs } from "../parts/tabs";
import { href, type ViewProps } from "../router";
import { say } from "../toast";
import { Checkpoints } from "./experiment/checkpoints_tab";
import { Metrics } from "./trial/metrics_tab";
import { Overview } from "./trial/overview_tab";

type TrialView = Schemas["TrialView"];

export function Trial({ ids }: ViewProps) {
  const id = ids[0] ?? "";
  const experimentId = Number(id.split(".")[0]);
  const fields = "state,outcome,restarts,attempts,best,latestCheckpoint,warning";
  const live = useFollowed(
    id,
    { trials: { experimentId, filter: `id = "${id}"`, fields } },
    (signal) => api.get("/api/v1/trials/{trial_id}", { parts: { trial_id: id }, signal }),
    null,
  );
  const owner = useOwner(experimentId);
  const view = live.value;
  if (view === null) return live.error === null ? <Loading /> : <Problem error={live.error} />;
  const { trial } = view;
  return (
    <>
      <div class="row">
        <h1>Trial {id}</h1>
        <CopyButton text={id} label={`the id of trial ${id}`} />
        <StateBadge state={trial.state} outcome={trial.outcome} />
        <a href={href(`/experiments/${trial.experimentId}`)}>Experiment {trial.experimentId}</a>
      </div>
      <div class="row">
        <Kill view={view} onDone={live.reload} />
        <Command text={`gangline trial describe ${id}`} />
      </div>
      <Problem error={live.error} />
      {trial.warning ? <p class="problem">Warning: {trial.warning}</p> : null}
      <Tabs
        label="Trial"
        tabs={[
          { id: "metrics", title: "Metrics", show: () => <Metrics id={id} isOver={trial.outcome !== null} /> },
          { id: "logs", title: "Logs", show: () => <LogView of="trials" id={id} /> },
          { id: "overview", title: "Overview", show: () => <Overview view={view} /> },
          {
            id: "checkpoints",
            title: "Checkpoints",
            show: () => <Checkpoints experimentId={trial.experimentId} trialId={id} owner={owner} />,
          },
        ]}
      />
    </>
  );
}

/** The owner of an experiment; null until it is known. */
function useOwner(experimentId: number): string | null {
  const key = `owner of ${experimentId}`;
  const load = (signal: AbortSignal) => {
    const query = { filter: `id = ${experimentId}`, fields: "owner" };
    return api.get("/api/v1/tables/{table}", { parts: { table: "experiments" }, query, signal });
  };
  const owner = useLive(key, load, 0).value?.rows[0]?.owner;
  return typeof owner === "string" ? owner : null;
}

function Kill({ view, onDone }: { view: TrialView; onDone: () => void }) {
  const [isAsked, setAsked] = useState(false);
  const { id, outcome } = view.trial;
  const kill = async () => {
    await api.post("/api/v1/trials/{trial_id}/kill", { parts: { trial_id: id } });
    say(`trial ${id} is killed`);
    onDone();
  };
  if (outcome !== null) return null;
  return (
    <>
      <button type="button" class="danger" onClick={() => setAsked(true)}>
        Kill
      </button>
      {isAsked ? (
        <Confirm title={`Kill trial ${id}?`} action="Kill" onConfirm={kill} onClose={() => setAsked(false)}>
          <p>It ends at once. {view.batchesAtRisk} batches since its last checkpoint are lost.</p>
          <p>
            The same on the command line: <Command text={`gangline trial kill ${id}`} />
          </p>
        </Confirm>
      ) : null}
    </>
  );
}
