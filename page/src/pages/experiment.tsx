export function Experiment() {
  return <h1>Experiment</h1>;
}
