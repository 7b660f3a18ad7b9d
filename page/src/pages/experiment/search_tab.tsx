/** How the hyperparameters of a search relate to its metric: parallel coordinates, scatter, heat map, and its rungs. */

import { useEffect, useState } from "preact/hooks";
import { api, type Schemas } from "../../api/client";
import { useReadAgain } from "../../api/live";
import { writeFields } from "../../lib/field_list";
import { Empty, Loading, Problem } from "../../parts/basic";
import { Head, TableFrame } from "../../parts/form";
import { HeatMap, ParallelCoordinates, type Sample, Scatter } from "../../parts/plots";
import { place, setQuery } from "../../router";
import { readFields, type Study, type TrialRow } from "./study";

const MOST_TRIALS = 1000;
const MOST_AXES = 12;

export function Search({ study }: { study: Study }) {
  const { row } = study;
  const isSmallerBetter = row.smallerIsBetter !== false;
  const { value, error } = useReadAgain(`${row.numTrials} ${row.numTrialsEnded}`, async (signal) => {
    const { hparams } = await readFields(row.id, signal);
    const query = {
      experimentId: row.id,
      fields: writeFields(["best", "batches", ...hparams]),
      sort: isSmallerBetter ? "best" : "-best",
      limit: MOST_TRIALS,
    };
    const page = await api.get("/api/v1/tables/{table}", { parts: { table: "trials" }, query, signal });
    const found = (page.rows as unknown as TrialRow[]).map((trial) => sampleOf(trial, hparams));
    const batches = page.rows.map((trial) => Number(trial.batches));
    return { samples: found, names: varying(found, hparams), batches };
  });
  if (value === null) return error === null ? <Loading /> : <Problem error={error} />;
  const { samples, names, batches } = value;
  const rated = samples.filter((sample) => sample.metric !== null).length;
  const metric = row.metric ?? "metric";
  return (
    <>
      <Problem error={error} />
      <Rungs study={study} batches={samples.length < row.numTrials ? null : batches} />
      {rated < 2 || names.length === 0 ? (
        <Empty>
          Plots need two trials with a value of {metric} and a hyperparameter that differs; so far {rated} of{" "}
          {samples.length} trials have a value.
        </Empty>
      ) : (
        <Plots samples={samples} names={names} metric={metric} isSmallerBetter={isSmallerBetter} />
      )}
      {row.numTrials > MOST_TRIALS ? <p>The best {MOST_TRIALS} trials are drawn.</p> : null}
    </>
  );
}

function sampleOf(trial: TrialRow, hparams: string[]): Sample {
  const values = hparams.map((name): [string, unknown] => [name.slice(3), trial[name]]);
  return { id: trial.id, metric: trial.best as number | null, hparams: Object.fromEntries(values) };
}

/** Returns the hyperparameters that have more than one value. */
function varying(samples: Sample[], hparams: string[]): string[] {
  return hparams
    .map((name) => name.slice(3))
    .filter((name) => new Set(samples.map((sample) => JSON.stringify(sample.hparams[name]))).size > 1);
}

interface PlotsProps {
  samples: Sample[];
  names: string[];
  metric: string;
  isSmallerBetter: boolean;
}

function Plots({ samples, names, metric, isSmallerBetter }: PlotsProps) {
  const query = place.value.query;
  const [first = ""] = names;
  const chosen = (parameter: string, standard: string) => {
    const asked = query.get(parameter) ?? "";
    return names.includes(asked) ? asked : standard;
  };
  const across = chosen("x", first);
  const up = chosen("y", names[1] ?? first);
  const choice = (parameter: string, title: string, value: string) => (
    <label>
      {title}{" "}
      <select value={value} onChange={(event) => setQuery({ [parameter]: event.currentTarget.value })}>
        {names.map((name) => (
          <option key={name} value={name}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
  return (
    <>
      <ParallelCoordinates
        samples={samples}
        metric={metric}
        isSmallerBetter={isSmallerBetter}
        names={names.slice(0, MOST_AXES)}
      />
      <div class="row">
        {choice("x", "Hyperparameter", across)}
        {choice("y", "and", up)}
      </div>
      <Scatter samples={samples} metric={metric} name={across} />
      {across === up ? null : (
        <HeatMap samples={samples} metric={metric} isSmallerBetter={isSmallerBetter} names={[across, up]} />
      )}
    </>
  );
}

/** The rungs at which a search by successive halving stops its worse trials. batches: what each trial has trained; null
 * if some are not known. */
function Rungs({ study, batches }: { study: Study; batches: number[] | null }) {
  const [preview, setPreview] = useState<Schemas["SearchPreview"] | null>(null);
  const isHalving = ["async_halving", "adaptive_asha"].includes(study.row.searcher ?? "");
  useEffect(() => {
    if (!isHalving) return;
    const body = { config: study.experiment.config as object, limit: 0 } as Schemas["PreviewSearch"];
    api.post("/api/v1/preview-hp-search", { body }).then(setPreview, () => {});
  }, [isHalving, study.row.id]);
  if (preview === null || preview.brackets.length === 0) return null;
  // Other units than batches are known to the search alone.
  const isCounted = preview.unit === "batches" && batches !== null;
  const titles = ["Bracket", "Rung", `After ${preview.unit || "units"}`, "Trials expected", "At least", "At most"];
  return (
    <>
      <h2>Rungs</h2>
      <TableFrame label="Rungs">
        <Head titles={isCounted ? [...titles, "Trained so far, of all brackets"] : titles} />
        <tbody>
          {preview.brackets.flatMap((bracket, index) =>
            bracket.rungs.map((rung, place) => {
              const planned = [rung.length, rung.expectedTrials, rung.minTrials, rung.maxTrials];
              const reached = isCounted ? [batches.filter((each) => each >= rung.length).length] : [];
              return (
                <tr key={`${index} ${rung.length}`}>
                  {[index + 1, place + 1, ...planned, ...reached].map((value, column) => (
                    <td key={column} class="number">
                      {value}
                    </td>
                  ))}
                </tr>
              );
            }),
          )}
        </tbody>
      </TableFrame>
    </>
  );
}
