/** The reader's own account: name, password, tokens, and signing out. */

import { useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { useLive } from "../api/live";
import { Command, Confirm, CopyButton, Dialog, Empty, Loading, Name, Problem, Time } from "../parts/basic";
import { FormDialog, Head, Same, TableFrame } from "../parts/form";
import { basePath, place, setQuery } from "../router";
import { loadUser, signOut, user } from "../session";
import { complain, say } from "../toast";
import "../administration.css";

type Token = Schemas["Token"];
// Of the choices for a new token, in days; -1 is until it is revoked.
const DAYS = [1, 7, 30, 90, 365, -1];

export function Settings() {
  const [asked, setAsked] = useState<"name" | "password" | null>(null);
  const me = user.value;
  if (!me) return null;
  return (
    <>
      <h1>Account</h1>
      <dl>
        <dt>Name</dt>
        <dd>{me.username}</dd>
        <dt>Shown as</dt>
        <dd>{me.displayName || "–"}</dd>
        <dt>Rights</dt>
        <dd>{me.admin ? "administrator" : "user"}</dd>
        <dt>Password</dt>
        <dd>{me.hasPassword ? "set" : "none; signs in with tokens and addresses of gangline open"}</dd>
      </dl>
      <div class="row">
        <button type="button" onClick={() => setAsked("name")}>
          Change the shown name
        </button>
        <button type="button" onClick={() => setAsked("password")}>
          Change the password
        </button>
        <button type="button" onClick={() => signOut().catch(complain)}>
          Sign out of this browser
        </button>
      </div>
      <Same command="gangline user whoami" />
      <Tokens />
      {asked === "name" ? <NameDialog onClose={() => setAsked(null)} /> : null}
      {asked === "password" ? <PasswordDialog onClose={() => setAsked(null)} /> : null}
    </>
  );
}

function NameDialog({ onClose }: { onClose: () => void }) {
  const me = user.value;
  const change = async (values: FormData) => {
    const body = { displayName: String(values.get("displayName")), isHashed: false };
    const answer = await api.patch("/api/v1/users/{user_id}", { parts: { user_id: me?.id ?? 0 }, body });
    user.value = answer.user;
  };
  return (
    <FormDialog title="The shown name" action="Change" onSubmit={change} onClose={onClose}>
      <label>
        Shown as <input name="displayName" defaultValue={me?.displayName ?? ""} autocomplete="name" />
      </label>
      <Same command={`gangline user edit ${me?.username} --display-name NAME`} />
    </FormDialog>
  );
}

function PasswordDialog({ onClose }: { onClose: () => void }) {
  const me = user.value;
  const change = async (values: FormData) => {
    const password = String(values.get("password"));
    const body = { password, isHashed: false };
    await api.patch("/api/v1/users/{user_id}", { parts: { user_id: me?.id ?? 0 }, body });
    // A new password ends all sessions, this one too.
    const login = { username: me?.username ?? "", password, key: "", basePath: basePath() };
    await api.post("/api/v1/session", { body: login });
    await loadUser();
    say("the password is changed, and all other sessions have ended");
  };
  return (
    <FormDialog title="Change the password" action="Change" onSubmit={change} onClose={onClose}>
      <input type="hidden" name="username" autocomplete="username" value={me?.username} />
      <label>
        New password, of 8 characters or more{" "}
        <input name="password" type="password" autocomplete="new-password" required />
      </label>
      <p class="quiet">It ends your other sessions, and not your tokens.</p>
      <Same command="gangline user change-password" />
    </FormDialog>
  );
}

function Tokens() {
  const me = user.value;
  const isOfAll = me?.admin === true && place.value.query.get("of") === "all";
  const asked = isOfAll ? {} : { username: me?.username ?? "" };
  const live = useLive(JSON.stringify(asked), (signal) => api.get("/api/v1/tokens", { query: asked, signal }), 10);
  const [isNew, setNew] = useState(false);
  const [made, setMade] = useState("");
  const [revoked, setRevoked] = useState<Token | null>(null);
  const close = () => {
    setNew(false);
    setRevoked(null);
    live.reload();
  };
  return (
    <section aria-labelledby="tokens">
      <div class="row">
        <h2 id="tokens">Tokens</h2>
        <button type="button" class="main" onClick={() => setNew(true)}>
          New token
        </button>
        {me?.admin ? (
          <label>
            <input
              type="checkbox"
              checked={isOfAll}
              onChange={(event) => setQuery({ of: event.currentTarget.checked ? "all" : "" })}
            />{" "}
            of all users
          </label>
        ) : null}
      </div>
      <Problem error={live.error} />
      {live.value === null && live.error === null ? <Loading /> : null}
      {live.value?.tokens.length === 0 ? (
        <Empty>
          There is no token. Programs use one in place of a password: <Command text="gangline token create" />
        </Empty>
      ) : null}
      {live.value === null || live.value.tokens.length === 0 ? null : (
        <TableFrame label="Tokens">
          <Head titles={["Number", "For", "User", "Made", "Ends", "Actions"]} />
          <tbody>
            {live.value.tokens.map((token) => (
              <tr key={token.id}>
                <th scope="row">{token.id}</th>
                <td>
                  <Name text={token.description || "–"} />
                </td>
                <td>
                  <Name text={token.username} />
                </td>
                <td>
                  <Time at={token.createdAt} />
                </td>
                <td>{token.expiry === null ? "when it is revoked" : <Time at={token.expiry} />}</td>
                <td>
                  <button
                    type="button"
                    class="danger"
                    aria-label={`Revoke token ${token.id}`}
                    onClick={() => setRevoked(token)}
                  >
                    Revoke
                  </button>
                </td>
              </tr>
            ))}
          </tbody>
        </TableFrame>
      )}
      <Same command="gangline token list" />
      {isNew ? <NewTokenDialog onMade={setMade} onClose={close} /> : null}
      {made === "" ? null : <MadeDialog token={made} onClose={() => setMade("")} />}
      {revoked === null ? null : <RevokeDialog token={revoked} onClose={close} />}
    </section>
  );
}

function NewTokenDialog({ onMade, onClose }: { onMade: (token: string) => void; onClose: () => void }) {
  const make = async (values: FormData) => {
    const days = Number(values.get("days"));
    const body = { description: String(values.get("description")), lifespan: days < 0 ? "-1" : `${days * 24}h` };
    onMade((await api.post("/api/v1/tokens", { body })).token);
  };
  return (
    <FormDialog title="New token" action="Make" onSubmit={make} onClose={onClose}>
      <label>
        What it is for <input name="description" autocomplete="off" />
      </label>
      <label>
        How long it holds{" "}
        <select name="days" defaultValue="30">
          {DAYS.map((days) => (
            <option key={days} value={days} selected={days === 30}>
              {days < 0 ? "until it is revoked" : `${days} ${days === 1 ? "day" : "days"}`}
            </option>
          ))}
        </select>
      </label>
      <Same command="gangline token create --name TEXT --days 30" />
    </FormDialog>
  );
}

function MadeDialog({ token, onClose }: { token: string; onClose: () => void }) {
  return (
    <Dialog title="The new token" onClose={onClose}>
      <p>It is shown this once. Programs use it as GANGLINE_TOKEN, or with gangline login.</p>
      <p>
        <code class="secret">{token}</code>
        <CopyButton text={token} label="the token" />
      </p>
      <div class="row end">
        <button type="button" class="main" onClick={onClose}>
          I have stored it
        </button>
      </div>
    </Dialog>
  );
}

function RevokeDialog({ token, onClose }: { token: Token; onClose: () => void }) {
  const revoke = async () => {
    const parts = { token_id: token.id };
    await api.patch("/api/v1/tokens/{token_id}", { parts, body: { setRevoked: true } });
    say(`token ${token.id} is revoked`);
  };
  return (
    <Confirm title={`Revoke token ${token.id}?`} action="Revoke" onConfirm={revoke} onClose={onClose}>
      <p>Programs that use it are refused from now on. It cannot be brought back.</p>
      <Same command={`gangline token revoke ${token.id}`} />
    </Confirm>
  );
}
