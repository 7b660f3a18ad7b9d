/** The dialog that registers a checkpoint as the next version of a model, of an existing one or of a new one. */

import { useState } from "preact/hooks";
import { api } from "../api/client";
import { useLive } from "../api/live";
import { shellWord } from "../lib/text";
import { hasRightsOf } from "../session";
import { say } from "../toast";
import { Problem } from "./basic";
import { FormDialog, Same } from "./form";

/** Models that the choice offers; more are found on the page of models. */
const MOST_OFFERED = 1000;

export function RegisterDialog({ checkpointId, onClose }: { checkpointId: string; onClose: () => void }) {
  const live = useLive(
    "models to register",
    (signal) => api.get("/api/v1/models", { query: { archived: false, limit: MOST_OFFERED }, signal }),
    0,
  );
  const [name, setName] = useState("");
  const [alias, setAlias] = useState("");
  const own = (live.value?.models ?? []).filter((model) => hasRightsOf(model.username));
  const register = async (values: FormData) => {
    const wanted = name.trim();
    const known = (await api.get("/api/v1/models", { query: { name: wanted } })).models;
    const model =
      known.find((each) => each.name === wanted) ??
      (await api.post("/api/v1/models", { body: { name: wanted } })).model;
    const { version } = await api.post("/api/v1/models/{model_id}/versions", {
      parts: { model_id: model.id },
      body: {
        checkpointUuid: checkpointId,
        name: String(values.get("version")).trim(),
        notes: String(values.get("notes")),
        aliases: alias.trim() === "" ? [] : [alias.trim()],
      },
    });
    say(`checkpoint ${checkpointId} is version ${version.number} of model ${wanted}`);
  };
  const moved = alias.trim() === "" ? "" : ` --alias ${shellWord(alias.trim())}`;
  return (
    <FormDialog title={`Register checkpoint ${checkpointId}`} action="Register" onSubmit={register} onClose={onClose}>
      <Problem error={live.error} />
      <label>
        Model; a new name makes a new model
        <input required list="own-models" value={name} onInput={(event) => setName(event.currentTarget.value)} />
      </label>
      <datalist id="own-models">
        {own.map((model) => (
          <option key={model.id} value={model.name} />
        ))}
      </datalist>
      <label>
        Name of the version, if any <input name="version" />
      </label>
      <label>
        Alias that moves to it, if any{" "}
        <input value={alias} placeholder="champion" onInput={(event) => setAlias(event.currentTarget.value)} />
      </label>
      <label>
        Notes, in Markdown
        <textarea name="notes" rows={4} />
      </label>
      <p class="quiet">The checkpoint is kept as long as the version exists.</p>
      <Same command={`gangline model register ${shellWord(name.trim() || "MODEL")} ${checkpointId}${moved}`} />
    </FormDialog>
  );
}
