// Colours. Phases and runs have fixed ones that people with any kind of colour vision can tell apart; each reads
// on the light and on the dark ground. Everything else comes from the variables in styles/theme.css.

/** One colour for each phase, the same in every view. */
const PHASES: Record<string, string> = {
  data: "#e08a1e",
  transfer: "#b9a02c",
  forward: "#3f7fd6",
  backward: "#6a5fd0",
  optimizer: "#1f9e89",
  communication: "#cf4f7c",
  checkpoint: "#8a6d3b",
  validation: "#4aa5c7",
  testing: "#7fb6a6",
  restore: "#a9824c",
  startup: "#7f8ea3",
  ending: "#9aa5b1",
  training: "#93a7dd",
  "between attempts": "#5d6673",
  "garbage collection": "#b06a8f",
  idle: "#b8bcc4",
  other: "#a3a8b0",
};

/** Titles of the time table that differ from the name of the phase. */
const TITLES: Record<string, string> = { "after the last step": "ending" };

/** For the user's own spans. */
const OWN = ["#b5651d", "#5b8c3e", "#a05195", "#2f7f8f", "#c2605a", "#7a7f2a", "#5470a8", "#936ab0", "#4d8f6f", "#b0793f"];

/** For runs, metrics and ranks in line charts, the most distinct first. */
const LINES = [
  "#3b72d9",
  "#e07b1a",
  "#1d9a78",
  "#c9457a",
  "#7d5fd3",
  "#a88a10",
  "#3fa3c9",
  "#b4532f",
  "#6b8e23",
  "#8c6f99",
];

/** A number for a text, the same in every session. */
export function hash(text: string): number {
  let value = 2166136261;
  for (let at = 0; at < text.length; at += 1) value = Math.imul(value ^ text.charCodeAt(at), 16777619);
  return value >>> 0;
}

/** The colour of a phase or, always the same, of a span of the user's own. */
export function phaseColour(name: string): string {
  const phase = TITLES[name] ?? name;
  return PHASES[phase] ?? OWN[hash(name) % OWN.length] ?? "#a3a8b0";
}

/** The colour of the n-th line of a chart. */
export function lineColour(index: number): string {
  return LINES[index % LINES.length] ?? "#3b72d9";
}

const taken = new Map<string, number>();

/** The colour of a run, the same in every chart. Runs get colours in the order in which they first appear; when all
 * are taken, darker ones follow, then lighter ones. */
export function runColour(id: string): string {
  const index = taken.get(id) ?? taken.size;
  taken.set(id, index);
  const colour = lineColour(index);
  const round = Math.floor(index / LINES.length) % 3;
  return round === 0 ? colour : round === 1 ? mixed(colour, 0, 0.38) : mixed(colour, 255, 0.42);
}

/** The colour with a share of black (0) or white (255). */
function mixed(colour: string, ground: number, share: number): string {
  const parts = [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16) * (1 - share) + ground * share);
  return `#${parts.map((part) => Math.round(part).toString(16).padStart(2, "0")).join("")}`;
}

/** Black or white, whichever reads better on a colour. */
export function inkOn(colour: string): string {
  const [red, green, blue] = [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16) / 255);
  const light = 0.2126 * (red ?? 0) ** 2.2 + 0.7152 * (green ?? 0) ** 2.2 + 0.0722 * (blue ?? 0) ** 2.2;
  return light > 0.2 ? "#000000" : "#ffffff";
}

/** The colour with an opacity between 0 and 1. */
export function withAlpha(colour: string, alpha: number): string {
  return colour + Math.round(alpha * 255).toString(16).padStart(2, "0");
}
