export function Experiments() {
  return <h1>Experiments</h1>;
}
