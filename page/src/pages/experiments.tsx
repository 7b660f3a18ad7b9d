/** All experiments. */

import { ExperimentList } from "./experiment_list/list";

export function Experiments() {
  return (
    <>
      <h1>Experiments</h1>
      <ExperimentList />
    </>
  );
}
