/** All users. Administrators make and deactivate them, and set their passwords. */

import { useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { useLive } from "../api/live";
import { Confirm, Loading, Name, Problem, Time } from "../parts/basic";
import { FormDialog, Head, Same, TableFrame } from "../parts/form";
import { place, setQuery } from "../router";
import { user as me } from "../session";
import { say } from "../toast";

type User = Schemas["User"];
type Action = "password" | "activate" | "deactivate" | "grant" | "withdraw";

export function Users() {
  const live = useLive("users", (signal) => api.get("/api/v1/users", { signal }), 5);
  const [isNew, setNew] = useState(false);
  const [asked, setAsked] = useState<{ action: Action; user: User } | null>(null);
  const close = () => {
    setNew(false);
    setAsked(null);
    live.reload();
  };
  const isAdmin = me.value?.admin ?? false;
  const text = place.value.query.get("text") ?? "";
  const wanted = text.toLowerCase();
  const shown = (live.value?.users ?? []).filter(({ username, displayName }) =>
    `${username} ${displayName}`.toLowerCase().includes(wanted),
  );
  return (
    <>
      <div class="row">
        <h1>Users</h1>
        {isAdmin ? (
          <button type="button" class="main" onClick={() => setNew(true)}>
            New user
          </button>
        ) : (
          <span class="quiet">Only administrators make and change users.</span>
        )}
        <label>
          Name contains{" "}
          <input type="search" value={text} onInput={(event) => setQuery({ text: event.currentTarget.value })} />
        </label>
      </div>
      <Problem error={live.error} />
      {live.value === null && live.error === null ? <Loading /> : null}
      <TableFrame label="Users">
        <Head titles={["Name", "Shown as", "Rights", "State", "Password", "Since", ...(isAdmin ? ["Actions"] : [])]} />
        <tbody>
          {shown.map((user) => (
            <Row key={user.id} user={user} ask={isAdmin ? (action) => setAsked({ action, user }) : null} />
          ))}
        </tbody>
      </TableFrame>
      <Same command="gangline user list" />
      {isNew ? <NewUserDialog onClose={close} /> : null}
      {asked?.action === "password" ? <PasswordDialog user={asked.user} onClose={close} /> : null}
      {asked !== null && asked.action !== "password" ? (
        <ChangeDialog user={asked.user} action={asked.action} onClose={close} />
      ) : null}
    </>
  );
}

function Row({ user, ask }: { user: User; ask: ((action: Action) => void) | null }) {
  const isMe = user.username === me.value?.username;
  return (
    <tr>
      <th scope="row">
        <Name text={user.username} />
      </th>
      <td>
        <Name text={user.displayName || "–"} />
      </td>
      <td>{user.admin ? "administrator" : "user"}</td>
      <td>{user.active ? "✓ active" : "⊘ deactivated"}</td>
      <td>{user.hasPassword ? "yes" : "no, tokens alone"}</td>
      <td>
        <Time at={user.createdAt} />
      </td>
      {ask === null ? null : (
        <td>
          {isMe ? (
            <span class="quiet">yourself: see Account</span>
          ) : (
            <span class="row">
              <Button text="Set password" name={user.username} onClick={() => ask("password")} />
              <Button
                text={user.active ? "Deactivate" : "Activate"}
                name={user.username}
                onClick={() => ask(user.active ? "deactivate" : "activate")}
              />
              <Button
                text={user.admin ? "Withdraw rights" : "Make administrator"}
                name={user.username}
                onClick={() => ask(user.admin ? "withdraw" : "grant")}
              />
            </span>
          )}
        </td>
      )}
    </tr>
  );
}

function Button({ text, name, onClick }: { text: string; name: string; onClick: () => void }) {
  return (
    <button type="button" aria-label={`${text}: ${name}`} onClick={onClick}>
      {text}
    </button>
  );
}

function NewUserDialog({ onClose }: { onClose: () => void }) {
  const make = async (values: FormData) => {
    const username = String(values.get("username"));
    const displayName = String(values.get("displayName"));
    const user = { username, displayName, admin: values.get("admin") === "on", active: true };
    const body = { user, password: String(values.get("password")), isHashed: false };
    await api.post("/api/v1/users", { body });
    say(`user ${username} is made`);
  };
  return (
    <FormDialog title="New user" action="Make" onSubmit={make} onClose={onClose}>
      <label>
        Name <input name="username" required autocomplete="off" />
      </label>
      <label>
        Shown as <input name="displayName" autocomplete="off" />
      </label>
      <label>
        Password, of 8 characters or more; empty for a user with tokens alone{" "}
        <input name="password" type="password" autocomplete="new-password" />
      </label>
      <label>
        <input name="admin" type="checkbox" /> administrator
      </label>
      <Same command="gangline user create NAME" />
    </FormDialog>
  );
}

function PasswordDialog({ user, onClose }: { user: User; onClose: () => void }) {
  const set = async (values: FormData) => {
    const body = { password: String(values.get("password")), isHashed: false };
    await api.patch("/api/v1/users/{user_id}", { parts: { user_id: user.id }, body });
    say(`the password of ${user.username} is set`);
  };
  return (
    <FormDialog title={`Password of ${user.username}`} action="Set" onSubmit={set} onClose={onClose}>
      <label>
        New password, of 8 characters or more{" "}
        <input name="password" type="password" autocomplete="new-password" required />
      </label>
      <p class="quiet">It ends the user's sessions, and not the tokens.</p>
      <Same command={`gangline user change-password ${user.username}`} />
    </FormDialog>
  );
}

const CHANGES = {
  activate: { title: "Activate", body: { active: true }, command: "user activate", effect: "The user may act again." },
  deactivate: {
    title: "Deactivate",
    body: { active: false },
    command: "user deactivate",
    effect: "All that the user does is refused from now on. The user's sessions, streams and connections end.",
  },
  grant: {
    title: "Make administrator",
    body: { admin: true },
    command: "user edit --admin",
    effect: "An administrator changes users, agents and slots, and the work of all users.",
  },
  withdraw: {
    title: "Withdraw rights",
    body: { admin: false },
    command: "user edit --no-admin",
    effect: "The user changes only what is the user's own.",
  },
} as const;

function ChangeDialog({ user, action, onClose }: { user: User; action: keyof typeof CHANGES; onClose: () => void }) {
  const [isKilling, setKilling] = useState(false);
  const { title, body, command, effect } = CHANGES[action];
  const option = isKilling ? " --kill-experiments" : "";
  const change = async () => {
    const kill = isKilling ? { killExperiments: true } : {};
    await api.patch("/api/v1/users/{user_id}", {
      parts: { user_id: user.id },
      body: { ...body, ...kill, isHashed: false },
    });
    say(`${title}: done for ${user.username}`);
  };
  return (
    <Confirm title={`${title}: ${user.username}?`} action={title} onConfirm={change} onClose={onClose}>
      <p>{effect}</p>
      {action === "deactivate" ? (
        <label>
          <input type="checkbox" checked={isKilling} onChange={(event) => setKilling(event.currentTarget.checked)} />{" "}
          Also kill the user's experiments and tasks. Otherwise they go on.
        </label>
      ) : null}
      <Same command={`gangline ${command} ${user.username}${option}`} />
    </Confirm>
  );
}
