/** PURE: the names of metrics as charts. Training and validation of one name share a chart. */

interface MetricName {
  group: string;
  name: string;
}

export interface ChartEntry {
  title: string;
  metrics: MetricName[];
}

const TOGETHER = ["training", "validation"];

/** Returns the charts of these metrics in the order of their titles, those of other groups last. */
export function chartsOf(names: MetricName[]): ChartEntry[] {
  const charts = new Map<string, ChartEntry & { rank: string }>();
  for (const metric of names) {
    const isTogether = TOGETHER.includes(metric.group);
    const title = isTogether ? metric.name : `${metric.group}/${metric.name}`;
    const key = isTogether ? `0 ${title}` : `1 ${title}`;
    const chart = charts.get(key) ?? { title, metrics: [], rank: key };
    chart.metrics.push(metric);
    charts.set(key, chart);
  }
  const sorted = [...charts.values()].sort((a, b) => (a.rank < b.rank ? -1 : a.rank > b.rank ? 1 : 0));
  return sorted.map(({ title, metrics }) => ({ title, metrics }));
}
