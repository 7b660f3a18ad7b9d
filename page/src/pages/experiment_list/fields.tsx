/** The fields of experiments as columns: their titles, widths and cells. */

import type { ComponentChildren } from "preact";
import type { Row } from "../../lib/row_list";
import { formatDuration, formatNumber, formatValue } from "../../lib/text";
import { TRAINING } from "../../lib/training_values";
import { Name, StateBadge, Time } from "../../parts/basic";
import { href } from "../../router";

type Kind = "text" | "number" | "time" | "seconds" | "share" | "list" | "state" | "link";

interface Field {
  title: string;
  kind: Kind;
  width: number;
}

function field(title: string, kind: Kind = "text", width = 140): Field {
  return { title, kind, width };
}

/** Fields that every experiment has. */
const FIELDS: Record<string, Field> = {
  id: field("ID", "link", 80),
  name: field("Name", "text", 300),
  state: field("State", "state"),
  owner: field("Owner"),
  startTime: field("Started", "time", 180),
  endTime: field("Ended", "time", 180),
  duration: field("Duration", "seconds", 130),
  progress: field("Progress", "share", 110),
  best: field("Best", "number", 110),
  latest: field("Latest", "number", 110),
  metric: field("Metric"),
  labels: field("Labels", "list", 200),
  reason: field("Reason", "text", 360),
  failure: field("Failure", "text", 180),
  numTrials: field("Trials", "number", 90),
  numTrialsPlanned: field("Trials planned", "number", 140),
  numTrialsEnded: field("Trials ended", "number", 130),
  bestTrial: field("Best trial", "text", 110),
  batches: field("Batches", "number", 110),
  restarts: field("Restarts", "number", 100),
  project: field("Project"),
  workspace: field("Workspace"),
  searcher: field("Searcher"),
  pool: field("Pool"),
  slots: field("Slots", "number", 90),
  maxSlots: field("Most slots", "number", 110),
  priority: field("Priority", "number", 90),
  template: field("Template"),
  forkedFrom: field("Forked from", "number", 120),
  description: field("Description", "text", 300),
  notes: field("Notes", "text", 300),
  entrypoint: field("Entrypoint", "text", 260),
  outcome: field("Outcome"),
  archived: field("Archived", "text", 100),
  kind: field("Kind"),
};

const FAMILIES = /^(hp|validation|training)\../;
/** Sorted by none: a row has several values. */
const UNSORTED = new Set(["labels"]);
/** What a column of a training metric needs: whose values it shows, and whether there may be later ones. */
const FOR_TRAINING = ["bestTrial", "batches"];

export const STANDARD = {
  ids: ["id", "name", "state", "owner", "startTime", "duration", "progress", "best", "labels"],
  numPinned: 1,
  widths: {},
};

export const FIXED = Object.keys(FIELDS);

export function isField(name: string): boolean {
  return Object.hasOwn(FIELDS, name) || FAMILIES.test(name);
}

/** Whether it is the newest value of a training metric, which the tables of the gateway do not have. */
export function isTraining(name: string): boolean {
  return name.startsWith(TRAINING);
}

export function isSortable(name: string): boolean {
  return !UNSORTED.has(name) && !isTraining(name);
}

export function fieldOf(name: string): Field {
  return (Object.hasOwn(FIELDS, name) ? FIELDS[name] : undefined) ?? field(name, "text", 150);
}

/** Returns the fields that the columns need. */
export function fieldsFor(ids: string[]): string[] {
  const needed = ids.flatMap((id) => (id === "state" ? ["state", "outcome"] : isTraining(id) ? FOR_TRAINING : [id]));
  return [...new Set([...needed, "name"])];
}

export function cellOf(name: string, row: Row): ComponentChildren {
  const value = row[name];
  if (value === null || value === undefined) {
    return <span class="quiet">–</span>;
  }
  switch (fieldOf(name).kind) {
    case "link":
      return <a href={href(`/experiments/${row.id}`)}>{row.id}</a>;
    case "state":
      return <StateBadge state={String(value)} outcome={row.outcome as string | null} />;
    case "time":
      return <Time at={String(value)} />;
    case "seconds":
      return formatDuration(Number(value));
    case "share":
      return `${Math.floor(Number(value) * 100)} %`;
    case "number":
      return formatNumber(Number(value));
    case "list":
      return <Name text={(value as string[]).join(", ")} />;
    default:
      return name === "name" ? (
        <a href={href(`/experiments/${row.id}`)} tabIndex={-1}>
          <Name text={formatValue(value)} />
        </a>
      ) : (
        <Name text={formatValue(value)} />
      );
  }
}
