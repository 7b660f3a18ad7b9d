/** The notes of an experiment: Markdown, shown as it will look beside the text. */

import { useState } from "preact/hooks";
import { api, type Schemas } from "../../api/client";
import { Command, Empty } from "../../parts/basic";
import { Markdown } from "../../parts/markdown";
import { complain, say } from "../../toast";

export function Notes({ id, notes }: { id: number; notes: string }) {
  const [text, setText] = useState<string | null>(null);
  const shown = text ?? notes;
  const save = async () => {
    try {
      await api.patch("/api/v1/experiments/{experiment_id}", {
        parts: { experiment_id: id },
        body: { notes: shown } as Schemas["PatchExperiment"],
      });
      say("the notes are stored");
      setText(null);
    } catch (failure) {
      complain(failure);
    }
  };
  return (
    <div class="stack">
      {text === null ? (
        <div class="row">
          <button type="button" onClick={() => setText(notes)}>
            Edit
          </button>
          <Command text={`gangline experiment set notes ${id} TEXT`} />
        </div>
      ) : (
        <>
          <label>
            Notes, in Markdown
            <textarea rows={12} cols={100} value={text} onInput={(event) => setText(event.currentTarget.value)} />
          </label>
          <div class="row">
            <button type="button" class="main" disabled={text === notes} onClick={save}>
              Save
            </button>
            <button type="button" onClick={() => setText(null)}>
              Back
            </button>
          </div>
        </>
      )}
      {shown === "" ? <Empty>There are no notes yet.</Empty> : <Markdown text={shown} />}
    </div>
  );
}
