/** All checkpoints: found by text and user, their files fetched, and deleted. */

import { useState } from "preact/hooks";
import { addressOf, api, type Schemas } from "../api/client";
import { useLive } from "../api/live";
import { formatBytes } from "../lib/bytes";
import { count } from "../lib/text";
import { Command, Confirm, CopyButton, Dialog, Empty, Loading, Name, Problem, Time } from "../parts/basic";
import { Head, Same, TableFrame } from "../parts/form";
import { RegisterDialog } from "../parts/register";
import { href, place, setQuery } from "../router";
import { hasRightsOf, user } from "../session";
import { say } from "../toast";

type Checkpoint = Schemas["Checkpoint"];
const PAGE_ROWS = 100;

export function Checkpoints() {
  const query = place.value.query;
  const [text, isMine] = [query.get("text") ?? "", query.get("of") === "mine"];
  const offset = Number(query.get("offset") ?? 0);
  const [shown, setShown] = useState<Checkpoint | null>(null);
  const [registered, setRegistered] = useState<Checkpoint | null>(null);
  const [deleted, setDeleted] = useState<Checkpoint | null>(null);
  const asked = {
    text,
    owner: isMine ? (user.value?.username ?? "") : "",
    newestFirst: true,
    limit: PAGE_ROWS,
    offset,
  };
  const live = useLive(JSON.stringify(asked), (signal) => api.get("/api/v1/checkpoints", { query: asked, signal }), 5);
  const page = live.value;
  return (
    <>
      <h1>Checkpoints</h1>
      <search class="row">
        <label>
          Id, trial or experiment contains{" "}
          <input
            type="search"
            value={text}
            onInput={(event) => setQuery({ text: event.currentTarget.value, offset: "" })}
          />
        </label>
        <label>
          <input
            type="checkbox"
            checked={isMine}
            onChange={(event) => setQuery({ of: event.currentTarget.checked ? "mine" : "", offset: "" })}
          />{" "}
          only mine
        </label>
        <span role="status">{page === null ? "Loading…" : count(page.pagination.total, "checkpoint")}</span>
      </search>
      <Problem error={live.error} />
      {page === null && live.error === null ? <Loading /> : null}
      {page?.checkpoints.length === 0 ? (
        <Empty>
          {text !== "" || isMine
            ? "No checkpoint matches."
            : "There is no checkpoint yet. A trial saves one when it ends, and at each min_checkpoint_period."}
        </Empty>
      ) : null}
      {page === null || page.checkpoints.length === 0 ? null : (
        <>
          <TableFrame label="Checkpoints">
            <Head titles={["Id", "Trial", "Batches", "Saved", "Size", "State", "User", "Actions"]} />
            <tbody>
              {page.checkpoints.map((checkpoint) => (
                <Row
                  key={checkpoint.id}
                  checkpoint={checkpoint}
                  owner={page.owners[checkpoint.experimentId] ?? ""}
                  show={() => setShown(checkpoint)}
                  register={() => setRegistered(checkpoint)}
                  remove={() => setDeleted(checkpoint)}
                />
              ))}
            </tbody>
          </TableFrame>
          <Paging offset={offset} page={page.pagination} />
        </>
      )}
      <Same command="gangline checkpoint list" />
      {shown === null ? null : <FilesDialog checkpoint={shown} onClose={() => setShown(null)} />}
      {registered === null ? null : <RegisterDialog checkpointId={registered.id} onClose={() => setRegistered(null)} />}
      {deleted === null ? null : (
        <DeleteDialog
          checkpoint={deleted}
          onClose={() => {
            setDeleted(null);
            live.reload();
          }}
        />
      )}
    </>
  );
}

function Paging({ offset, page }: { offset: number; page: Schemas["Pagination"] }) {
  if (page.total <= PAGE_ROWS) return null;
  return (
    <nav class="row" aria-label="Parts of the list">
      <button
        type="button"
        disabled={offset === 0}
        onClick={() => setQuery({ offset: offset > PAGE_ROWS ? String(offset - PAGE_ROWS) : "" })}
      >
        Newer
      </button>
      <span>
        {page.startIndex + 1} to {page.endIndex} of {page.total}
      </span>
      <button
        type="button"
        disabled={page.endIndex >= page.total}
        onClick={() => setQuery({ offset: String(offset + PAGE_ROWS) })}
      >
        Older
      </button>
    </nav>
  );
}

interface RowProps {
  checkpoint: Checkpoint;
  owner: string;
  show: () => void;
  register: () => void;
  remove: () => void;
}

function Row({ checkpoint, owner, show, register, remove }: RowProps) {
  const mayDelete = hasRightsOf(owner);
  const numBytes = Object.values(checkpoint.resources).reduce((sum, each) => sum + each, 0);
  return (
    <tr>
      <th scope="row">
        <Name text={checkpoint.id} />
        <CopyButton text={checkpoint.id} label={`checkpoint ${checkpoint.id}`} />
      </th>
      <td>
        <a href={href(`/trials/${checkpoint.trialId}`)}>{checkpoint.trialId}</a>
      </td>
      <td class="number">{checkpoint.totalBatches}</td>
      <td>
        <Time at={checkpoint.reportTime} />
      </td>
      <td class="number">{formatBytes(numBytes)}</td>
      <td>{checkpoint.state}</td>
      <td>
        <Name text={owner} />
      </td>
      <td>
        <span class="row">
          <button type="button" aria-label={`Files of ${checkpoint.id}`} onClick={show}>
            Files
          </button>
          {checkpoint.state === "DELETING" ? null : (
            <button type="button" aria-label={`Register ${checkpoint.id}`} onClick={register}>
              Register
            </button>
          )}
          {checkpoint.state === "DELETING" ? null : mayDelete ? (
            <button type="button" class="danger" aria-label={`Delete ${checkpoint.id}`} onClick={remove}>
              Delete
            </button>
          ) : (
            <span class="quiet">deleted by its user alone</span>
          )}
        </span>
      </td>
    </tr>
  );
}

function FilesDialog({ checkpoint, onClose }: { checkpoint: Checkpoint; onClose: () => void }) {
  const files = Object.entries(checkpoint.resources).filter(([path]) => !path.endsWith("/"));
  const address = addressOf(`/api/v1/checkpoints/${encodeURIComponent(checkpoint.id)}/files/`);
  return (
    <Dialog title={`Files of checkpoint ${checkpoint.id}`} onClose={onClose}>
      {files.length === 0 ? <p>It names no files.</p> : null}
      <ul class="plain">
        {files.map(([path, size]) => (
          <li key={path}>
            <a href={address + encodePath(path)}>
              <Name text={path} />
            </a>{" "}
            <span class="quiet">{formatBytes(size)}</span>
          </li>
        ))}
      </ul>
      <p>
        All of them, into a folder: <Command text={`gangline checkpoint download ${checkpoint.id}`} />
      </p>
      <div class="row end">
        <button type="button" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

function encodePath(path: string): string {
  return path.split("/").map(encodeURIComponent).join("/");
}

function DeleteDialog({ checkpoint, onClose }: { checkpoint: Checkpoint; onClose: () => void }) {
  const remove = async () => {
    const parts = { checkpoint_id: checkpoint.id };
    await api.delete("/api/v1/checkpoints/{checkpoint_id}", { parts });
    say(`checkpoint ${checkpoint.id} is deleted`);
  };
  return (
    <Confirm title={`Delete checkpoint ${checkpoint.id}?`} action="Delete" onConfirm={remove} onClose={onClose}>
      <p>Its files are deleted soon after, and cannot be brought back.</p>
      <Same command={`gangline checkpoint rm ${checkpoint.id}`} />
    </Confirm>
  );
}
