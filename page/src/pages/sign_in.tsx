/** Signing in, with a password or with the one-time key of an address. */

import { useEffect, useState } from "preact/hooks";
import { ApiError } from "../api/client";
import { Command, Loading } from "../parts/basic";
import { go } from "../router";
import { notice, signIn, signInByKey, user } from "../session";

export function SignIn() {
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);
  useEffect(() => {
    document.title = "Sign in – Gangline";
  }, []);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const values = new FormData(event.currentTarget as HTMLFormElement);
    setBusy(true);
    setProblem("");
    try {
      await signIn(String(values.get("username")), String(values.get("password")));
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
      setProblem(failure.message);
    }
    setBusy(false);
  };
  return (
    <section class="narrow">
      <h1>Sign in</h1>
      {notice.value === "" ? null : <p role="alert">{notice.value}</p>}
      <form onSubmit={submit}>
        <label>
          User
          <input name="username" autocomplete="username" required />
        </label>
        <label>
          Password
          <input name="password" type="password" autocomplete="current-password" required />
        </label>
        {problem === "" ? null : (
          <p class="problem" role="alert">
            {problem}
          </p>
        )}
        <button type="submit" class="main" disabled={isBusy}>
          Sign in
        </button>
      </form>
      <p>
        Where you use the command line already, this opens the page and signs you in: <Command text="gangline open" />
      </p>
    </section>
  );
}

/** The address that `gangline up` and `gangline open` print. The key is behind `#`, so no server and no log gets it. */
export function Enter() {
  useEffect(() => {
    const values = new URLSearchParams(location.hash.slice(1));
    // It leaves the address and the browser's history at once.
    go("/enter", true);
    const to = values.get("to") ?? "/";
    void signInByKey(values.get("key") ?? "", to.startsWith("/") ? to : `/${to}`);
  }, []);
  return user.value === null ? <SignIn /> : <Loading />;
}
