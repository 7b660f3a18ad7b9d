/** An editor for the configuration of a fork, or for the changes with which an experiment goes on. The gateway checks the
 * text as one types. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, api, type Schemas } from "../../api/client";
import { forFork, withOverrides } from "../../lib/overrides";
import { count } from "../../lib/text";
import { Command, Dialog } from "../../parts/basic";
import { partOf } from "../../reload";
import { go } from "../../router";
import { complain, say } from "../../toast";
import { useYaml } from "./config_tab";
import type { Study } from "./study";

type Mapping = Record<string, unknown>;
const PAUSE_MILLISECONDS = 300;
const EMPTY: Mapping = { "searcher.max_length.batches": 1000 };

interface Props {
  kind: "fork" | "continue";
  study: Study;
  onClose: () => void;
}

export function ConfigEditor({ kind, study, onClose }: Props) {
  const { row, experiment } = study;
  const config = experiment.config as Mapping;
  const [start] = useState(() => (kind === "fork" ? forFork(config) : startOf(config)));
  const first = useYaml(start);
  const [edited, setEdited] = useState<string | null>(null);
  const [isPaused, setPaused] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const [requestId] = useState(() => `page-${Array.from(crypto.getRandomValues(new Uint32Array(4))).join("-")}`);
  const text = edited ?? first;
  const check = useCheck(kind, config, text);
  const send = async () => {
    setBusy(true);
    try {
      if (kind === "fork") {
        const body = {
          config: text ?? "",
          codeSha256: experiment.codeSha256,
          forkedFrom: row.id,
          requestId,
          activate: !isPaused,
          ...(experiment.template === "" ? {} : { template: experiment.template }),
        } as Schemas["CreateExperiment"];
        const made = await api.post("/api/v1/experiments", { body });
        say(`experiment ${made.experiment.id} is created`);
        onClose();
        go(`/experiments/${made.experiment.id}`);
        return;
      }
      const overrides = await parse(text ?? "");
      const body = { overrides } as Schemas["ContinueBody"];
      await api.post("/api/v1/experiments/{experiment_id}/continue", { parts: { experiment_id: row.id }, body });
      say(`experiment ${row.id} goes on`);
      onClose();
    } catch (failure) {
      complain(failure);
    }
    setBusy(false);
  };
  return (
    <Dialog title={kind === "fork" ? `Fork experiment ${row.id}` : `Continue experiment ${row.id}`} onClose={onClose}>
      <div class="stack editor">
        <label>
          {kind === "fork" ? "Configuration" : "Changes, by dotted keys"}
          <textarea
            class="code"
            rows={kind === "fork" ? 20 : 6}
            spellcheck={false}
            aria-describedby="config-check"
            aria-invalid={check.problem !== ""}
            value={text ?? ""}
            onInput={(event) => setEdited(event.currentTarget.value)}
          />
        </label>
        <p id="config-check" role="status" class={check.problem === "" ? "quiet" : "problem"}>
          {check.problem === "" ? check.words : `Error: ${check.problem}`}
        </p>
        {kind === "fork" ? (
          <label>
            <input type="checkbox" checked={isPaused} onChange={(event) => setPaused(event.currentTarget.checked)} />{" "}
            start nothing before it is activated
          </label>
        ) : null}
        <p>
          The same on the command line: <Command text={`gangline experiment ${kind} ${row.id} --config KEY=VALUE`} />
        </p>
        <div class="row end">
          <button type="button" onClick={onClose}>
            Back
          </button>
          <button type="button" class="main" disabled={isBusy || check.problem !== "" || text === null} onClick={send}>
            {kind === "fork" ? "Create" : "Continue"}
          </button>
        </div>
      </div>
    </Dialog>
  );
}

/** The length of the search, which is what one changes to go on. */
function startOf(config: Mapping): Mapping {
  const length = (config.searcher as { max_length?: Mapping } | undefined)?.max_length;
  const [unit, value] = Object.entries(length ?? {})[0] ?? [];
  return typeof value === "number" ? { [`searcher.max_length.${unit}`]: value } : EMPTY;
}

async function parse(text: string): Promise<Mapping> {
  const { load } = await partOf(() => import("js-yaml"));
  const value = load(text);
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new Error("write a line for each key, such as searcher.max_length.batches: 200");
  }
  return value as Mapping;
}

interface Check {
  words: string;
  problem: string;
}

/** Asks the gateway what it would make of the text, once no key was pressed for a moment. */
function useCheck(kind: Props["kind"], config: Mapping, text: string | null): Check {
  const [check, setCheck] = useState<Check>({ words: "Checking…", problem: "" });
  useEffect(() => {
    if (text === null) return;
    const ending = new AbortController();
    const ask = async () => {
      try {
        const whole = kind === "fork" ? text : withOverrides(config, await parse(text));
        const body = { config: whole, limit: 0 } as Schemas["PreviewSearch"];
        const preview = await api.post("/api/v1/preview-hp-search", { body, signal: ending.signal });
        setCheck({
          words: `The configuration is valid: ${count(preview.numTrials, "trial")} of ${count(preview.slotsPerTrial, "slot")}.`,
          problem: "",
        });
      } catch (failure) {
        if (ending.signal.aborted) return;
        const message = failure instanceof Error ? (failure.message.split("\n")[0] ?? "") : String(failure);
        const isUnsure = failure instanceof ApiError && failure.status === 0;
        setCheck(isUnsure ? { words: message, problem: "" } : { words: "", problem: message });
      }
    };
    const timer = setTimeout(ask, PAUSE_MILLISECONDS);
    return () => {
      clearTimeout(timer);
      ending.abort();
    };
  }, [kind, config, text]);
  return check;
}
