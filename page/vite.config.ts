import { defineConfig } from "vite";

export default defineConfig({
  // Relative: the document names its own base, which depends on the path that a proxy puts before it.
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../services/gateway/http/browser/static",
    emptyOutDir: true,
    target: "es2023",
    modulePreload: false,
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    // build_page.py counts with it what a browser loads first.
    manifest: "manifest.json",
  },
  test: { include: ["test/**/*.test.ts"], environment: "node" },
} as Parameters<typeof defineConfig>[0]);
