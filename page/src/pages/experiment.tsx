/** One experiment: overview, trials, learning curves, the search, configuration, code, checkpoints, log, notes. */

import { Command, CopyButton, Loading, Name, Problem, StateBadge } from "../parts/basic";
import { LogView } from "../parts/log_view";
import { Tabs } from "../parts/tabs";
import type { ViewProps } from "../router";
import { StudyActions } from "./experiment/actions";
import { Checkpoints } from "./experiment/checkpoints_tab";
import { Code } from "./experiment/code_tab";
import { Configuration } from "./experiment/config_tab";
import { Curves } from "./experiment/curves_tab";
import { Notes } from "./experiment/notes_tab";
import { Overview } from "./experiment/overview_tab";
import { Search } from "./experiment/search_tab";
import { useStudy } from "./experiment/study";
import { Trials } from "./experiment/trials_tab";

export function Experiment({ ids }: ViewProps) {
  const id = Number(ids[0]);
  const { study, error, isGone } = useStudy(id);
  if (isGone) return <p role="alert">Experiment {id} has been deleted.</p>;
  if (study === null) return error === null ? <Loading /> : <Problem error={error} />;
  const { row } = study;
  return (
    <>
      <div class="row">
        <h1>
          Experiment {id}: <Name text={row.name} />
        </h1>
        <CopyButton text={String(id)} label={`the id of experiment ${id}`} />
        <StateBadge state={row.state} outcome={row.outcome} />
        {row.archived ? <span class="badge">ARCHIVED</span> : null}
      </div>
      <div class="row">
        <StudyActions study={study} />
        <Command text={`gangline experiment describe ${id}`} />
      </div>
      <Problem error={error} />
      <Tabs
        label="Experiment"
        tabs={[
          { id: "overview", title: "Overview", show: () => <Overview study={study} /> },
          { id: "trials", title: `Trials (${row.numTrials})`, show: () => <Trials row={row} /> },
          { id: "curves", title: "Learning curves", show: () => <Curves row={row} /> },
          { id: "search", title: "Search", show: () => <Search study={study} /> },
          { id: "config", title: "Configuration", show: () => <Configuration study={study} /> },
          { id: "code", title: "Code", show: () => <Code id={id} owner={row.owner} /> },
          {
            id: "checkpoints",
            title: "Checkpoints",
            show: () => <Checkpoints experimentId={id} trialId="" owner={row.owner} />,
          },
          { id: "logs", title: "Logs", show: () => <LogView of="experiments" id={String(id)} /> },
          { id: "notes", title: "Notes", show: () => <Notes id={id} notes={row.notes ?? ""} /> },
        ]}
      />
    </>
  );
}
