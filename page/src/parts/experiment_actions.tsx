/** Buttons that act on one experiment or on a few. */

import { useState } from "preact/hooks";
import { api } from "../api/client";
import { count } from "../lib/text";
import { complain, say } from "../toast";
import { Command, Confirm } from "./basic";

const ACTIONS = {
  pause: { title: "Pause", command: "pause", isFinal: false },
  activate: { title: "Activate", command: "activate", isFinal: false },
  kill: { title: "Kill", command: "kill", isFinal: true },
  archive: { title: "Archive", command: "archive", isFinal: false },
} as const;
type Action = keyof typeof ACTIONS;

/** Buttons that act on experiments, one after another. */
export function Actions({ ids, onDone }: { ids: number[]; onDone: () => void }) {
  const [asked, setAsked] = useState<Action | null>(null);
  const run = async (action: Action) => {
    let numDone = 0;
    for (const id of ids) {
      try {
        await api.post(`/api/v1/experiments/{experiment_id}/${action}`, { parts: { experiment_id: id } });
        numDone++;
      } catch (failure) {
        complain(failure);
      }
    }
    if (numDone > 0) say(`${ACTIONS[action].title}: done for ${count(numDone, "experiment")}`);
    onDone();
  };
  return (
    <fieldset class="choice" disabled={ids.length === 0}>
      <legend class="hidden">Actions</legend>
      {(Object.keys(ACTIONS) as Action[]).map((action) => (
        <button
          key={action}
          type="button"
          class={ACTIONS[action].isFinal ? "danger" : ""}
          onClick={() => (ACTIONS[action].isFinal ? setAsked(action) : void run(action))}
        >
          {ACTIONS[action].title}
        </button>
      ))}
      {asked === null ? null : (
        <Confirm
          title={`${ACTIONS[asked].title} ${count(ids.length, "experiment")}?`}
          action={ACTIONS[asked].title}
          onConfirm={() => run(asked)}
          onClose={() => setAsked(null)}
        >
          <p>Their trials end at once, and what they trained since their last checkpoint is lost.</p>
          <p>
            The same on the command line: <Command text={`gangline experiment ${asked} ${ids.join(" ")}`} />
          </p>
        </Confirm>
      )}
    </fieldset>
  );
}
