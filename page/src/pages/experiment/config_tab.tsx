/** The configuration of an experiment as YAML. */

import { useEffect, useState } from "preact/hooks";
import { Command, CopyButton, Loading } from "../../parts/basic";
import { partOf } from "../../reload";
import { complain } from "../../toast";
import type { Study } from "./study";

/** Returns a value as YAML; null until the code for that is loaded. */
export function useYaml(value: unknown): string | null {
  const [text, setText] = useState<string | null>(null);
  useEffect(() => {
    partOf(() => import("js-yaml")).then(({ dump }) => setText(dump(value)), complain);
  }, [value]);
  return text;
}

export function Configuration({ study }: { study: Study }) {
  const text = useYaml(study.experiment.config);
  if (text === null) return <Loading />;
  return (
    <>
      <div class="row">
        <span class="quiet">With all defaults, as the scheduler took it</span>
        <CopyButton text={text} label="the configuration" />
        <Command text={`gangline experiment describe ${study.row.id} --json`} />
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it is scrolled by keyboard */}
      <pre tabIndex={0}>{text}</pre>
    </>
  );
}
