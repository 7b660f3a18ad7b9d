/** The frame around all views: header, navigation, messages, and who is signed in. */

import type { ComponentType } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { isConnected } from "./api/client";
import { streamProblem } from "./api/live_store";
import { Enter, SignIn } from "./pages/sign_in";
import { Loading } from "./parts/basic";
import { Reload } from "./reload";
import { href, match, place, type View, type ViewProps } from "./router";
import { loadUser, problem, signOut, user } from "./session";
import { theme } from "./theme";
import { complain, say, Toasts } from "./toast";
import { NAVIGATION, VIEWS } from "./views";

export function App() {
  const wasConnected = useRef(true);
  useEffect(() => {
    if (isConnected.value && !wasConnected.current) say("the connection to the gateway is back");
    wasConnected.current = isConnected.value;
  }, [isConnected.value]);
  useEffect(() => {
    if (place.value.path !== "/enter") void loadUser();
  }, []);
  return (
    <>
      <a class="skip" href="#content">
        Skip to the content
      </a>
      <Header />
      {isConnected.value ? null : (
        <p class="banner" role="alert">
          The connection to the gateway is lost. What you see may be old; the page tries again by itself.
        </p>
      )}
      {streamProblem.value === "" ? null : (
        <p class="banner" role="alert">
          What you see is not kept up to date: {streamProblem.value}
        </p>
      )}
      <main id="content" tabIndex={-1}>
        <Content />
      </main>
      <Toasts />
    </>
  );
}

function Content() {
  if (place.value.path === "/enter") return <Enter />;
  if (user.value === undefined) return problem.value === "" ? <Loading /> : <p role="alert">{problem.value}</p>;
  if (user.value === null || place.value.path === "/sign-in") return <SignIn />;
  const path = place.value.path;
  for (const view of VIEWS) {
    const ids = match(view.pattern, path);
    if (ids !== null) return <Shown key={path} view={view} ids={ids} />;
  }
  return (
    <>
      <h1>There is no such page</h1>
      <p>
        The address <code>{path}</code> names no page. <a href={href("/")}>Go to the first one.</a>
      </p>
    </>
  );
}

/** A view, whose code is loaded when it is shown first. */
function Shown({ view, ids }: { view: View; ids: string[] }) {
  const [component, setComponent] = useState<{ Component: ComponentType<ViewProps> } | null>(null);
  useEffect(() => {
    document.title = `${[view.title, ...ids].join(" ")} – Gangline`;
    const reload = new Reload();
    const load = async () => {
      try {
        const Component = await view.load();
        reload.succeed();
        setComponent({ Component });
      } catch {
        reload.fail();
      }
    };
    void load();
    return () => reload.end();
  }, [view, ids]);
  return component === null ? <Loading /> : <component.Component ids={ids} />;
}

function Header() {
  const current = `/${place.value.path.split("/")[1] ?? ""}`;
  return (
    <header>
      <a class="logo" href={href("/")}>
        Gangline
      </a>
      {user.value ? (
        <nav aria-label="Pages">
          {NAVIGATION.filter((link) => user.value?.admin || !link.isForAdmins).map((link) => (
            <a key={link.path} href={href(link.path)} aria-current={link.path === current ? "page" : undefined}>
              {link.text}
            </a>
          ))}
        </nav>
      ) : null}
      <div class="row end">
        <ThemeChoice />
        {user.value ? (
          <>
            <details class="user">
              <summary>
                {user.value.displayName || user.value.username}
                {user.value.admin ? " (administrator)" : ""}
              </summary>
              <button type="button" onClick={() => signOut(true).catch(complain)}>
                Sign out everywhere
              </button>
            </details>
            <button type="button" onClick={() => signOut().catch(complain)}>
              Sign out
            </button>
          </>
        ) : null}
      </div>
    </header>
  );
}

function ThemeChoice() {
  return (
    <label class="theme">
      <span class="hidden">Colours</span>
      <select
        value={theme.value}
        onChange={(event) => {
          theme.value = event.currentTarget.value as typeof theme.value;
        }}
      >
        <option value="system">System</option>
        <option value="light">Light</option>
        <option value="dark">Dark</option>
      </select>
    </label>
  );
}
