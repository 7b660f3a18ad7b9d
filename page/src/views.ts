/** All views of the page by their addresses. The first part of each is also in `PAGES` of page_files.py. */

import { Home } from "./pages/home";
import type { View } from "./router";

export const VIEWS: View[] = [
  { pattern: "/", title: "Home", load: async () => Home },
  {
    pattern: "/experiments",
    title: "Experiments",
    load: async () => (await import("./pages/experiments")).Experiments,
  },
  {
    pattern: "/experiments/:id",
    title: "Experiment",
    load: async () => (await import("./pages/experiment")).Experiment,
  },
  { pattern: "/workspaces", title: "Workspaces", load: async () => (await import("./pages/workspaces")).Workspaces },
  {
    pattern: "/workspaces/:id",
    title: "Workspace",
    load: async () => (await import("./pages/workspaces")).Workspace,
  },
  { pattern: "/projects/:id", title: "Project", load: async () => (await import("./pages/workspaces")).Project },
  { pattern: "/trials/:id", title: "Trial", load: async () => (await import("./pages/trial")).Trial },
  { pattern: "/compare", title: "Compare", load: async () => (await import("./pages/compare")).Compare },
  { pattern: "/queue", title: "Queue", load: async () => (await import("./pages/queue")).Queue },
  { pattern: "/tasks", title: "Tasks", load: async () => (await import("./pages/tasks")).Tasks },
  {
    pattern: "/checkpoints",
    title: "Checkpoints",
    load: async () => (await import("./pages/checkpoints")).Checkpoints,
  },
  { pattern: "/models", title: "Models", load: async () => (await import("./pages/models")).Models },
  { pattern: "/models/:id", title: "Model", load: async () => (await import("./pages/models")).Model },
  { pattern: "/templates", title: "Templates", load: async () => (await import("./pages/templates")).Templates },
  { pattern: "/cluster", title: "Cluster", load: async () => (await import("./pages/cluster")).Cluster },
  { pattern: "/users", title: "Users", load: async () => (await import("./pages/users")).Users },
  { pattern: "/audit", title: "Audit log", load: async () => (await import("./pages/audit")).Audit },
  { pattern: "/settings", title: "Account", load: async () => (await import("./pages/settings")).Settings },
  { pattern: "/docs", title: "HTTP API", load: async () => (await import("./pages/api_docs")).ApiDocs },
];

interface Link {
  path: string;
  text: string;
  /** Whether others have no right to what the view shows. */
  isForAdmins?: boolean;
}

/** The links of the navigation. */
export const NAVIGATION: Link[] = [
  { path: "/", text: "Home" },
  { path: "/experiments", text: "Experiments" },
  { path: "/workspaces", text: "Workspaces" },
  { path: "/queue", text: "Queue" },
  { path: "/tasks", text: "Tasks" },
  { path: "/checkpoints", text: "Checkpoints" },
  { path: "/models", text: "Models" },
  { path: "/templates", text: "Templates" },
  { path: "/cluster", text: "Cluster" },
  { path: "/users", text: "Users" },
  { path: "/audit", text: "Audit", isForAdmins: true },
  { path: "/settings", text: "Account" },
  { path: "/docs", text: "API" },
];
