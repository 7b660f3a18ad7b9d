/** What the views of one experiment share: its row of the table, kept up to date, its configuration, and its trials. */

import { useFollowed } from "../../api/changes";
import { type ApiError, api, type Schemas } from "../../api/client";
import { useReadAgain } from "../../api/live";

export interface StudyRow {
  id: number;
  name: string;
  owner: string;
  state: string;
  outcome: string | null;
  reason: string | null;
  labels: string[];
  notes: string | null;
  description: string | null;
  archived: boolean;
  deleting: boolean;
  startTime: string | null;
  endTime: string | null;
  workspace: string | null;
  project: string | null;
  forkedFrom: number | null;
  searcher: string | null;
  metric: string | null;
  smallerIsBetter: boolean | null;
  pool: string | null;
  slots: number | null;
  maxSlots: number | null;
  priority: number | null;
  numTrials: number;
  numTrialsPlanned: number | null;
  numTrialsEnded: number;
  progress: number | null;
  batches: number;
  restarts: number;
  best: number | null;
  bestTrial: string | null;
}

const FIELDS =
  "name,owner,state,outcome,reason,labels,notes,description,archived,deleting,startTime,endTime,workspace,project," +
  "forkedFrom,searcher,metric,smallerIsBetter,pool,slots,maxSlots,priority,numTrials,numTrialsPlanned," +
  "numTrialsEnded,progress,batches,restarts,best,bestTrial";

export interface Study {
  row: StudyRow;
  experiment: Schemas["Experiment"];
  /** Why no further trial starts; null if nothing prevents it. */
  reason: Schemas["Reason"] | null;
  tasks: Schemas["TaskExplanation"][];
}

/** Loads an experiment without its trials, and keeps its row up to date. */
export function useStudy(id: number): { study: Study | null; error: ApiError | null; isGone: boolean } {
  const selection = { filter: `id = ${id}`, fields: FIELDS };
  const live = useFollowed<Found>(
    String(id),
    { experiments: selection },
    async (signal) => {
      const parts = { table: "experiments" } as const;
      const page = await api.get("/api/v1/tables/{table}", { parts, query: selection, signal });
      return { row: (page.rows[0] as unknown as StudyRow | undefined) ?? null, isGone: false };
    },
    (former, { experiments }) => {
      const changed = experiments?.rows.find((each) => each.id === id) as unknown as StudyRow | undefined;
      return { row: changed ?? former.row, isGone: experiments?.gone.includes(id) ?? false };
    },
  );
  const row = live.value?.row ?? null;
  // Its reason changes with the queue, of which the row knows nothing: it is read again with each change of the row.
  const key = row === null ? "" : [row.state, row.outcome, row.numTrials, row.numTrialsEnded].join();
  const explained = useReadAgain(key, (signal) =>
    api.get("/api/v1/jobs/{job_id}/explanation", { parts: { job_id: String(id) }, signal }),
  );
  const why = explained.value;
  const study = row === null || why === null ? null : { row, experiment: why.experiment, ...reasonOf(why) };
  return { study, error: live.error ?? explained.error, isGone: live.value?.isGone ?? false };
}

interface Found {
  /** null if there is no such experiment. */
  row: StudyRow | null;
  isGone: boolean;
}

function reasonOf({ reason, tasks }: Schemas["Explanation"]) {
  return { reason, tasks };
}

export interface TrialRow {
  id: string;
  state: string;
  outcome: string | null;
  [field: string]: unknown;
}

/** Returns the names of the hyperparameters of an experiment's trials, and of their validation metrics. */
export async function readFields(id: number, signal?: AbortSignal): Promise<{ hparams: string[]; metrics: string[] }> {
  const query = { experimentId: id, limit: 1000 };
  const { fields } = await api.get("/api/v1/tables/{table}/fields", {
    parts: { table: "trials" },
    query,
    ...(signal === undefined ? {} : { signal }),
  });
  const names = fields.map((field) => field.name);
  return {
    hparams: names.filter((name) => name.startsWith("hp.")),
    metrics: names.filter((name) => name.startsWith("validation.")),
  };
}
