/** Checkpoints of an experiment or of one trial: their files to download, and deleting them. */

import { useState } from "preact/hooks";
import { addressOf, api, download, type Schemas } from "../../api/client";
import { useLive } from "../../api/live";
import { formatBytes } from "../../lib/text";
import { Command, Confirm, CopyButton, Empty, Loading, Problem, Time } from "../../parts/basic";
import { RegisterDialog } from "../../parts/register";
import { href } from "../../router";
import { hasRightsOf } from "../../session";
import { complain, say } from "../../toast";

type Checkpoint = Schemas["Checkpoint"];
const PAGE = 50;
const REFRESH_SECONDS = 5;

interface Props {
  experimentId: number;
  /** Only those of this trial; empty for all of the experiment. */
  trialId: string;
  /** Of the experiment; null until it is known. */
  owner: string | null;
}

export function Checkpoints({ experimentId, trialId, owner }: Props) {
  const mayDelete = owner !== null && hasRightsOf(owner);
  const [limit, setLimit] = useState(PAGE);
  const [asked, setAsked] = useState<Checkpoint | null>(null);
  const [registered, setRegistered] = useState<Checkpoint | null>(null);
  const live = useLive(
    `${experimentId} ${limit}`,
    (signal) =>
      api.get("/api/v1/experiments/{experiment_id}/checkpoints", {
        parts: { experiment_id: experimentId },
        query: { limit: trialId === "" ? limit : 0 },
        signal,
      }),
    REFRESH_SECONDS,
  );
  if (live.value === null) return live.error === null ? <Loading /> : <Problem error={live.error} />;
  const { checkpoints, pagination } = live.value;
  const all = trialId === "" ? checkpoints : checkpoints.filter((each) => each.trialId === trialId);
  const shown = all.slice(0, limit);
  const total = trialId === "" ? pagination.total : all.length;
  const remove = async () => {
    if (asked === null) return;
    await api.delete("/api/v1/checkpoints/{checkpoint_id}", { parts: { checkpoint_id: asked.id } });
    say(`checkpoint ${asked.id} is being deleted`);
    live.reload();
  };
  if (shown.length === 0) {
    return (
      <Empty>
        There is no checkpoint yet. Trials save one with <code>core.checkpoint.store_path</code>, and before each pause.
      </Empty>
    );
  }
  return (
    <>
      {mayDelete || owner === null ? null : (
        <p class="quiet">Only {owner} and administrators delete these checkpoints.</p>
      )}
      <ul class="plain cards">
        {shown.map((each) => (
          <li key={each.id}>
            <CheckpointCard
              checkpoint={each}
              hasTrial={trialId === ""}
              onRegister={() => setRegistered(each)}
              onDelete={mayDelete ? () => setAsked(each) : null}
            />
          </li>
        ))}
      </ul>
      {total > shown.length ? (
        <button type="button" onClick={() => setLimit(limit + PAGE)}>
          Show more of {total}
        </button>
      ) : null}
      {registered === null ? null : <RegisterDialog checkpointId={registered.id} onClose={() => setRegistered(null)} />}
      {asked === null ? null : (
        <Confirm title="Delete this checkpoint?" action="Delete" onConfirm={remove} onClose={() => setAsked(null)}>
          <p>Its files are deleted for good.</p>
          <p>
            The same on the command line: <Command text={`gangline checkpoint rm ${asked.id}`} />
          </p>
        </Confirm>
      )}
    </>
  );
}

interface CardProps {
  checkpoint: Checkpoint;
  hasTrial: boolean;
  onRegister: () => void;
  /** null where the caller may not. */
  onDelete: (() => void) | null;
}

function CheckpointCard({ checkpoint, hasTrial, onRegister, onDelete }: CardProps) {
  const files = Object.entries(checkpoint.resources);
  const numBytes = files.reduce((sum, [, size]) => sum + size, 0);
  return (
    <>
      <div class="row">
        <strong>{checkpoint.totalBatches} batches</strong>
        {hasTrial ? <a href={href(`/trials/${checkpoint.trialId}`)}>trial {checkpoint.trialId}</a> : null}
        <Time at={checkpoint.reportTime} />
        <span>{checkpoint.state}</span>
        <code>{checkpoint.id}</code>
        <CopyButton text={checkpoint.id} label={`the id of checkpoint ${checkpoint.id}`} />
        <button type="button" disabled={checkpoint.state !== "COMPLETED"} onClick={onRegister}>
          Register
        </button>
        {onDelete === null ? null : (
          <button type="button" class="danger" disabled={checkpoint.state !== "COMPLETED"} onClick={onDelete}>
            Delete
          </button>
        )}
      </div>
      <details>
        <summary>
          {files.length} files, {formatBytes(numBytes)}
        </summary>
        <Command text={`gangline checkpoint download ${checkpoint.id}`} />
        <ul class="plain">
          {files.map(([path, size]) => (
            <li key={path}>
              <button
                type="button"
                class="plain link"
                onClick={() =>
                  download(fileAddress(checkpoint.id, path), path.split("/").at(-1) ?? path).catch(complain)
                }
              >
                {path}
              </button>{" "}
              {formatBytes(size)}
            </li>
          ))}
        </ul>
      </details>
    </>
  );
}

function fileAddress(id: string, path: string): string {
  const folder = addressOf("/api/v1/checkpoints/{checkpoint_id}/files/", { checkpoint_id: id });
  return folder + path.split("/").map(encodeURIComponent).join("/");
}
