// Bundles the page into the Python package: index.html, app.js and app.css, and nothing else.
// Usage: node build.mjs [--watch] [--out DIR]

import { copyFile, mkdir, stat } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { build, context } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const at = process.argv.indexOf("--out");
const out = at > 0 ? resolve(process.argv[at + 1]) : resolve(here, "../src/stepwell/dashboard/static");
const watch = process.argv.includes("--watch");

const options = {
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir: out,
  bundle: true,
  minify: !watch,
  sourcemap: false,
  format: "iife",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "utf8",
  legalComments: "none",
  define: { "process.env.NODE_ENV": '"production"' },
  logLevel: "info",
};

await mkdir(out, { recursive: true });
await copyFile(join(here, "src/index.html"), join(out, "index.html"));

if (watch) {
  await (await context(options)).watch();
} else {
  await build(options);
  const sizes = await Promise.all(["app.js", "app.css"].map(async (name) => [name, (await stat(join(out, name))).size]));
  for (const [name, size] of sizes) console.log(`${name}: ${(size / 1000).toFixed(1)} kB`);
}
