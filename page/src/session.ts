/** Who is signed in. The session itself is a cookie that the page cannot read. */

import { signal } from "@preact/signals";
import { Retry } from "./api/again";
import { ApiError, api, onSignedOut, type Schemas, send } from "./api/client";
import { basePath, go, place } from "./router";

export type User = Schemas["User"];

/** undefined until the gateway has told; null while nobody is signed in. */
export const user = signal<User | null | undefined>(undefined);
/** Why the gateway has not told; empty otherwise. */
export const problem = signal("");
/** What the view for signing in says first; empty for nothing. */
export const notice = signal("");

let wanted = "/";
const retry = new Retry();

/** Asks who is signed in. Repeated until the gateway answers. */
export async function loadUser(): Promise<void> {
  try {
    user.value = (await api.get("/api/v1/me")).user;
    problem.value = "";
    retry.succeed();
  } catch (failure) {
    if (!(failure instanceof ApiError)) throw failure;
    if (failure.isTemporary) {
      problem.value = failure.message;
      retry.soon(loadUser);
    } else {
      user.value = null;
      // No login changes that, so the view says what does.
      if (failure.code === "auth.two_sessions") notice.value = failure.message;
    }
  }
}

/** Returns whether the user has the rights of this owner, which administrators always have. */
export function hasRightsOf(owner: string): boolean {
  return user.value?.admin === true || user.value?.username === owner;
}

export async function signIn(username: string, password: string): Promise<void> {
  const answer = await api.post("/api/v1/session", { body: { username, password, key: "", basePath: basePath() } });
  enter(answer.user);
}

/** Opens a session with a one-time key of the address. */
export async function signInByKey(key: string, path: string): Promise<void> {
  wanted = path;
  try {
    const answer = await api.post("/api/v1/session", {
      body: { username: "", password: "", key, basePath: basePath() },
    });
    enter(answer.user);
  } catch (failure) {
    if (!(failure instanceof ApiError)) throw failure;
    // A browser that is signed in already needs no key.
    await loadUser();
    if (user.value) go(wanted, true);
    else notice.value = failure.message;
  }
}

/** isEverywhere: ends all sessions of the user, in other browsers too. */
export async function signOut(isEverywhere = false): Promise<void> {
  const query = new URLSearchParams({ basePath: basePath(), everywhere: String(isEverywhere) });
  await send(`${basePath()}api/v1/session?${query}`, { method: "DELETE" });
  wanted = "/";
  user.value = null;
}

function enter(found: User): void {
  user.value = found;
  notice.value = "";
  go(wanted, true);
}

onSignedOut.call = () => {
  if (user.value) {
    wanted = place.value.path + (place.value.query.size > 0 ? `?${place.value.query}` : "");
    notice.value = "your session has ended; sign in again";
  } else if (place.value.path !== "/enter" && place.value.path !== "/sign-in") {
    wanted = place.value.path + (place.value.query.size > 0 ? `?${place.value.query}` : "");
  }
  user.value = null;
};
