/** The dialog that registers a checkpoint as the next version of a model, of an existing one or of a new one. */

import { useState } from "preact/hooks";
import { api } from "../api/client";
import { useReadAgain } from "../api/live";
import { count, shellWord } from "../lib/text";
import { user } from "../session";
import { say } from "../toast";
import { Problem } from "./basic";
import { FormDialog, Same } from "./form";

/** Models that the choice offers at a time. */
const OFFERED = 20;

export function RegisterDialog({ checkpointId, onClose }: { checkpointId: string; onClose: () => void }) {
  const [name, setName] = useState("");
  const [alias, setAlias] = useState("");
  const [limit, setLimit] = useState(OFFERED);
  const owner = user.value?.admin ? {} : { username: user.value?.username ?? "" };
  // What matches is read anew as one types; the former models are offered until then.
  const query = { name: name.trim(), archived: false, limit, ...owner };
  const live = useReadAgain(JSON.stringify(query), (signal) => api.get("/api/v1/models", { query, signal }));
  const offered = live.value?.models ?? [];
  const total = live.value?.pagination.total ?? 0;
  const register = async (values: FormData) => {
    const wanted = name.trim();
    const [known] = (await api.get("/api/v1/models", { query: { name: wanted, exact: true } })).models;
    const model = known ?? (await api.post("/api/v1/models", { body: { name: wanted } })).model;
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
        <input
          required
          list="own-models"
          value={name}
          onInput={(event) => {
            setLimit(OFFERED);
            setName(event.currentTarget.value);
          }}
        />
      </label>
      <datalist id="own-models">
        {offered.map((model) => (
          <option key={model.id} value={model.name} />
        ))}
      </datalist>
      <div class="row">
        <span class="quiet" role="status">
          {live.value === null ? "Loading…" : `${offered.length} of ${count(total, "model")} offered`}
        </span>
        {offered.length < total ? (
          <button type="button" onClick={() => setLimit(limit + OFFERED)}>
            Offer more
          </button>
        ) : null}
      </div>
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
