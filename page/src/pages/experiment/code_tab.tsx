/** The code of an experiment: its files as a tree, and one of them with the numbers of its lines. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, addressOf, download, send } from "../../api/client";
import { readTar, type TarFile, textOf } from "../../lib/tar";
import { Command, CopyButton, Empty, Loading, Problem } from "../../parts/basic";
import { place, setQuery } from "../../router";
import { hasRightsOf } from "../../session";
import { complain } from "../../toast";

/** Bytes of an unpacked archive that the page shows. */
const MOST_BYTES = 64 * 2 ** 20;
const MOST_SHOWN = 500_000;

/** owner: of the experiment, whose code nobody else but administrators may read. */
export function Code({ id, owner }: { id: number; owner: string }) {
  if (hasRightsOf(owner)) return <CodeOf id={id} />;
  return <p>Only {owner} and administrators read the code of this experiment.</p>;
}

function CodeOf({ id }: { id: number }) {
  const [files, setFiles] = useState<TarFile[] | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const address = addressOf("/api/v1/experiments/{experiment_id}/code", { experiment_id: id });
  useEffect(() => {
    const ending = new AbortController();
    readCode(address, ending.signal).then(setFiles, (failure: Error) => {
      if (ending.signal.aborted) return;
      setError(failure instanceof ApiError ? failure : new ApiError(0, "page.code", failure.message));
    });
    return () => ending.abort();
  }, [address]);
  if (error !== null) return <Problem error={error} />;
  if (files === null) return <Loading />;
  const asked = place.value.query.get("file");
  const shown = files.find((file) => file.path === asked) ?? files[0];
  return (
    <>
      <div class="row">
        <button type="button" onClick={() => download(address, `experiment-${id}.tar.gz`).catch(complain)}>
          Download
        </button>
        <Command text={`gangline experiment code ${id}`} />
      </div>
      {shown === undefined ? (
        <Empty>The code has no files.</Empty>
      ) : (
        <div class="beside files">
          <nav aria-label="Files" class="tree">
            <Tree files={files} prefix="" shown={shown.path} />
          </nav>
          <Viewer file={shown} />
        </div>
      )}
    </>
  );
}

async function readCode(address: string, signal: AbortSignal): Promise<TarFile[]> {
  const answer = await send(address, { signal });
  if (answer.body === null) return [];
  const reader = answer.body.pipeThrough(new DecompressionStream("gzip")).getReader();
  const parts: Uint8Array[] = [];
  let numBytes = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    numBytes += value.length;
    if (numBytes > MOST_BYTES) {
      await reader.cancel();
      throw new Error("the code has more than 64 MiB, which this page does not show; download it");
    }
  }
  const bytes = new Uint8Array(numBytes);
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return readTar(bytes);
}

interface TreeProps {
  files: TarFile[];
  /** The folder, with a slash at its end; empty for the first one. */
  prefix: string;
  shown: string;
}

function Tree({ files, prefix, shown }: TreeProps) {
  const names = new Set(files.map((file) => file.path.slice(prefix.length).split("/", 2).join("/")));
  const folders = new Set([...names].filter((name) => name.includes("/")).map((name) => name.split("/")[0] ?? ""));
  return (
    <ul class="plain">
      {[...folders].map((folder) => (
        <li key={folder}>
          <details open={shown.startsWith(`${prefix}${folder}/`)}>
            <summary>{folder}/</summary>
            <Tree
              files={files.filter((file) => file.path.startsWith(`${prefix}${folder}/`))}
              prefix={`${prefix}${folder}/`}
              shown={shown}
            />
          </details>
        </li>
      ))}
      {[...names]
        .filter((name) => !name.includes("/"))
        .map((name) => (
          <li key={name}>
            <button
              type="button"
              class="plain"
              aria-current={prefix + name === shown ? "true" : undefined}
              onClick={() => setQuery({ file: prefix + name })}
            >
              {name}
            </button>
          </li>
        ))}
    </ul>
  );
}

function Viewer({ file }: { file: TarFile }) {
  const text = textOf(file.body);
  if (text === null)
    return (
      <p>
        {file.path} is no text; it has {file.body.length} bytes.
      </p>
    );
  const lines = text.slice(0, MOST_SHOWN).replace(/\n$/, "").split("\n");
  return (
    <section aria-label={file.path}>
      <div class="row">
        <strong>{file.path}</strong>
        <CopyButton text={text} label="this file" />
        {text.length > MOST_SHOWN ? <span>Only its beginning is shown.</span> : null}
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it is scrolled by keyboard */}
      <pre tabIndex={0} class="code">
        <span class="numbers" aria-hidden="true">
          {lines.map((_, index) => index + 1).join("\n")}
        </span>
        <code>{lines.join("\n")}</code>
      </pre>
    </section>
  );
}
