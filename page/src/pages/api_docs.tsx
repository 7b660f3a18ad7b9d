/** The HTTP API, call by call, from the gateway's own description of it. Nothing is loaded from elsewhere. */

import { useState } from "preact/hooks";
import { send } from "../api/client";
import { useLive } from "../api/live";
import { Command, Loading, Problem } from "../parts/basic";
import { basePath } from "../router";

interface Operation {
  summary?: string;
  description?: string;
  tags?: string[];
  parameters?: { name: string; in: string; required?: boolean; description?: string; schema?: { type?: string } }[];
  requestBody?: { content: Record<string, { example?: unknown }> };
}

interface Description {
  info: { version: string; description: string };
  paths: Record<string, Record<string, Operation>>;
}

export function ApiDocs() {
  const [search, setSearch] = useState("");
  const live = useLive(
    "api",
    async (signal) => (await (await send(`${basePath()}api/v1/openapi.json`, { signal })).json()) as Description,
    0,
  );
  if (live.value === null) return live.error === null ? <Loading /> : <Problem error={live.error} />;
  const calls = Object.entries(live.value.paths).flatMap(([path, operations]) =>
    Object.entries(operations).map(([method, operation]) => ({ path, method: method.toUpperCase(), operation })),
  );
  const words = search.toLowerCase().split(" ");
  const found = calls.filter(({ path, method, operation }) => {
    const text = `${method} ${path} ${operation.description ?? ""}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  return (
    <>
      <h1>HTTP API</h1>
      <p>
        Version {live.value.info.version}. {live.value.info.description} Programs send{" "}
        <code>Authorization: Bearer TOKEN</code>; the whole as OpenAPI:{" "}
        <a href={`${basePath()}api/v1/openapi.json`}>openapi.json</a>.
      </p>
      <label>
        Search <input type="search" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
      </label>
      <p role="status">
        {found.length} of {calls.length} calls
      </p>
      {found.map(({ path, method, operation }) => (
        <details key={`${method} ${path}`}>
          <summary>
            <code>
              {method} {path}
            </code>
          </summary>
          <CallText path={path} method={method} operation={operation} />
        </details>
      ))}
    </>
  );
}

function CallText({ path, method, operation }: { path: string; method: string; operation: Operation }) {
  const body = operation.requestBody?.content["application/json"]?.example;
  const data = body === undefined ? "" : ` -H 'Content-Type: application/json' -d '${JSON.stringify(body)}'`;
  const verb = method === "GET" ? "" : ` -X ${method}`;
  return (
    <>
      <p>{operation.description ?? operation.summary}</p>
      <dl>
        {operation.parameters?.map((parameter) => (
          <Parameter key={parameter.name} {...parameter} />
        ))}
      </dl>
      <p>
        <Command text={`curl -s${verb} -H "$AUTH"${data} "$GATEWAY${path}"`} />
      </p>
    </>
  );
}

function Parameter(given: { name: string; in: string; required?: boolean; description?: string }) {
  return (
    <>
      <dt>
        <code>{given.name}</code>
      </dt>
      <dd>
        {given.in}
        {given.required ? ", required" : ""}. {given.description}
      </dd>
    </>
  );
}
