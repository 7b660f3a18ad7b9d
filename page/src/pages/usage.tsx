/** Slot-hours over time by user, workspace, label and more, as stacked bars with a table behind them. */

import { addressOf, api } from "../api/client";
import { useLive } from "../api/live";
import { formatNumber } from "../lib/text";
import { stackBars, tabulate, type UsageTable } from "../lib/usage";
import { Empty, Loading, Name, Problem } from "../parts/basic";
import { Same, TableFrame } from "../parts/form";
import { place, setQuery } from "../router";

const GROUPS = {
  owner: "User",
  workspace: "Workspace",
  project: "Project",
  label: "Label",
  pool: "Pool",
  experiment: "Experiment",
};
const DAYS = [7, 30, 90];
const MONTHLY_DAYS = 365;
const DAY_MS = 86_400_000;
const MAX_KEYS = 8;
const [WIDTH, HEIGHT] = [960, 200];

export function Usage() {
  const query = place.value.query;
  const by = query.get("by") ?? "owner";
  const days = Number(query.get("days") ?? 30);
  const monthly = days === MONTHLY_DAYS;
  const day = (time: number) => new Date(time).toISOString().slice(0, 10);
  const asked = { startDate: day(Date.now() - (days - 1) * DAY_MS), endDate: day(Date.now()), by, monthly };
  const live = useLive(
    JSON.stringify(asked),
    (signal) => api.get("/api/v1/usage/history", { query: asked, signal }),
    60,
  );
  const table = live.value === null ? null : tabulate(live.value.points, MAX_KEYS);
  return (
    <>
      <div class="row">
        <label>
          By{" "}
          <select value={by} onChange={(event) => setQuery({ by: event.currentTarget.value })}>
            {Object.entries(GROUPS).map(([value, title]) => (
              <option key={value} value={value}>
                {title}
              </option>
            ))}
          </select>
        </label>
        <label>
          Of the last{" "}
          <select value={days} onChange={(event) => setQuery({ days: event.currentTarget.value })}>
            {DAYS.map((number) => (
              <option key={number} value={number}>
                {number} days
              </option>
            ))}
            <option value={MONTHLY_DAYS}>12 months</option>
          </select>
        </label>
        <a href={addressOf("/api/v1/usage/history", {}, { ...asked, csv: true })}>All of it as CSV</a>
      </div>
      <p class="quiet">
        Hours of slots that were held, from their placement until they were free again; days and months are in UTC.
        {by === "label" ? " An experiment with several labels counts for each of them." : ""}
      </p>
      <Problem error={live.error} />
      {live.value === null && live.error === null ? <Loading /> : null}
      {table === null ? null : table.keys.length === 0 ? (
        <Empty>No slot was held in this time.</Empty>
      ) : (
        <UsageChart table={table} />
      )}
      {by === "label" ? null : <Same command={`gangline usage --since ${days}d --by ${by}`} />}
    </>
  );
}

function UsageChart({ table }: { table: UsageTable }) {
  const [bars, highest] = stackBars(table, WIDTH, HEIGHT);
  return (
    <figure>
      <figcaption>
        Slot-hours from {table.periods[0]} to {table.periods.at(-1)}; the highest bar is {formatNumber(highest)}
      </figcaption>
      <svg class="bars" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
        {bars.map((bar) => (
          <rect
            key={`${bar.period} ${bar.key}`}
            class={`bar-${bar.column}`}
            x={bar.x}
            y={bar.y}
            width={bar.width}
            height={bar.height}
          >
            <title>{`${bar.period}, ${bar.key}: ${formatNumber(bar.hours)} slot-hours`}</title>
          </rect>
        ))}
      </svg>
      <ul class="plain row" aria-label="What the colours mean">
        {table.keys.map((key, column) => (
          <li key={key}>
            <svg class="swatch" viewBox="0 0 10 10" aria-hidden="true">
              <rect class={`bar-${column}`} width="10" height="10" />
            </svg>{" "}
            <Name text={key || "(none)"} /> {formatNumber(table.totals[column])}
          </li>
        ))}
      </ul>
      <details>
        <summary>Table of slot-hours</summary>
        <TableFrame label="Table of slot-hours">
          <thead>
            <tr>
              <th scope="col">From</th>
              {table.keys.map((key) => (
                <th key={key} scope="col">
                  <Name text={key || "(none)"} />
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {table.periods.map((period, row) => (
              <tr key={period}>
                <th scope="row">{period}</th>
                {table.keys.map((key, column) => (
                  <td key={key} class="number">
                    {formatNumber(table.hours[row]?.[column])}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </TableFrame>
      </details>
    </figure>
  );
}
