// Bundles the page into the Python package: index.html, app.js, app.css, and the licenses of what is in them.
// Usage: node build.mjs [--watch] [--out DIR]

import { copyFile, mkdir, readdir, readFile, stat, writeFile } from "node:fs/promises";
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
  const { metafile } = await build({ ...options, metafile: true });
  await writeFile(join(out, "LICENSES.txt"), await licenses(Object.keys(metafile.inputs)));
  const sizes = await Promise.all(["app.js", "app.css"].map(async (name) => [name, (await stat(join(out, name))).size]));
  for (const [name, size] of sizes) console.log(`${name}: ${(size / 1000).toFixed(1)} kB`);
}

/** The license texts of the packages that these files come from. */
async function licenses(files) {
  const packages = new Set(files.map((file) => /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(file)?.[1]).filter(Boolean));
  const texts = await Promise.all(
    [...packages].sort().map(async (name) => {
      const folder = join(here, "node_modules", name);
      const { version } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
      const file = (await readdir(folder)).find((each) => /^licen[cs]e/i.test(each));
      if (!file) throw new Error(`${name} has no license file`);
      return `${name} ${version}\n\n${(await readFile(join(folder, file), "utf8")).trim()}\n`;
    }),
  );
  return texts.join(`\n${"-".repeat(80)}\n\n`);
}
