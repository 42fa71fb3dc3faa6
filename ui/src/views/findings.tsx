// The verdict: findings, one sentence each, with advice and evidence.

import { count, duration, percent, plain } from "../format";
import { SeverityMark } from "../parts/marks";
import { href, useRouteList, useRouteParam } from "../router";
import type { Finding, Overview } from "../types";

const MOST = 6;

export function Verdict({ run, overview }: { run: string; overview: Overview }) {
  const { findings, unchecked, steps, head } = overview;
  const [open, setOpen] = useRouteList("open");
  const [all, setAll] = useRouteParam("all");
  const shown = all ? findings : findings.slice(0, MOST);
  const hidden = findings.length - shown.length;
  if (!findings.length) {
    return (
      <section class="card verdict" aria-labelledby="verdict">
        <h2 id="verdict" class={steps ? "verdict-good" : ""}>
          {steps ? "No problems found." : head.status === "running" ? "No steps yet." : "No steps were recorded."}
        </h2>
        {unchecked.length > 0 && (
          <p class="muted">
            Not checked: {unchecked.map(({ subject, reason }) => `${subject} (${reason})`).join(", ")}.
          </p>
        )}
      </section>
    );
  }
  const toggle = (key: string): void =>
    setOpen(open.includes(key) ? open.filter((each) => each !== key) : [...open, key]);
  return (
    <section class="card verdict" aria-labelledby="verdict">
      <h2 id="verdict">{verdict(findings)}</h2>
      <ol class="findings">
        {shown.map((finding, place) => {
          const key = `${finding.rule}-${place}`;
          return (
            <FindingItem key={key} id={key} run={run} finding={finding} isOpen={open.includes(key)} toggle={() => toggle(key)} />
          );
        })}
      </ol>
      {hidden > 0 && (
        <button type="button" class="link-button" onClick={() => setAll("1")}>
          Show {count(hidden)} more
        </button>
      )}
    </section>
  );
}

/** "2 critical findings, 5 warnings and 5 notes". */
function verdict(findings: Finding[]): string {
  const words = { critical: ["critical finding", "critical findings"], warning: ["warning", "warnings"], note: ["note", "notes"] };
  const parts = (["critical", "warning", "note"] as const).flatMap((severity) => {
    const amount = findings.filter((finding) => finding.severity === severity).length;
    return amount ? [`${amount} ${words[severity][amount === 1 ? 0 : 1]}`] : [];
  });
  return parts.length > 1 ? `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}` : (parts[0] ?? "");
}

interface ItemProps {
  id: string;
  run: string;
  finding: Finding;
  isOpen: boolean;
  toggle: () => void;
}

function FindingItem({ id, run, finding, isOpen, toggle }: ItemProps) {
  return (
    <li class={`finding finding-${finding.severity}`}>
      <SeverityMark severity={finding.severity} />
      <div class="finding-body">
        <p class="finding-sentence">{finding.sentence}</p>
        {finding.advice && (
          <p class="finding-advice">
            <span aria-hidden="true">→ </span>
            {finding.advice}
          </p>
        )}
        {isOpen && <Evidence id={id} run={run} finding={finding} />}
      </div>
      <button type="button" class="link-button finding-toggle" aria-expanded={isOpen} aria-controls={`evidence-${id}`} onClick={toggle}>
        {isOpen ? "Hide" : "Evidence"}
        <span class="visually-hidden"> for {finding.rule}</span>
      </button>
    </li>
  );
}

function Evidence({ id, run, finding }: { id: string; run: string; finding: Finding }) {
  const rows = Object.entries(finding.evidence).filter(
    ([name, value]) =>
      value !== null &&
      value !== "" &&
      !(name === "ns" && value === finding.cost_ns) &&
      !(name === "steps" && finding.steps.length) &&
      !(name === "ranks" && finding.ranks.length),
  );
  const links = linksOf(run, finding);
  return (
    <div class="evidence" id={`evidence-${id}`}>
      {finding.lines.length > 0 && <pre tabIndex={0}>{finding.lines.join("\n")}</pre>}
      <dl>
        <div>
          <dt>rule</dt>
          <dd>{finding.rule}</dd>
        </div>
        {finding.cost_ns > 0 && (
          <div>
            <dt>cost</dt>
            <dd>{duration(finding.cost_ns)}</dd>
          </div>
        )}
        {finding.steps.length > 0 && (
          <div>
            <dt>steps</dt>
            <dd>{some(finding.steps)}</dd>
          </div>
        )}
        {finding.ranks.length > 0 && (
          <div>
            <dt>ranks</dt>
            <dd>{some(finding.ranks)}</dd>
          </div>
        )}
        {rows.map(([name, value]) => (
          <div key={name}>
            <dt>{evidenceTitle(name)}</dt>
            <dd>{evidenceText(name, value)}</dd>
          </div>
        ))}
      </dl>
      <p class="evidence-links">
        {links.map(([title, address]) => (
          <a key={title} href={address}>
            {title}
          </a>
        ))}
        {finding.link && <code>{finding.link}</code>}
      </p>
    </div>
  );
}

function some(values: number[]): string {
  const shown = values.slice(0, 12).map(count).join(", ");
  return values.length > 12 ? `${shown} and ${count(values.length - 12)} more` : shown;
}

/** "typical_ns" → "typical": the value has its unit. */
function evidenceTitle(name: string): string {
  if (name === "ns") return "time";
  return name.replace(/_ns$/, "").replaceAll("_", " ");
}

function evidenceText(name: string, value: unknown): string {
  if (typeof value === "number") {
    if (/(^|_)ns$/.test(name)) return duration(value);
    if (/(^|_)share$/.test(name)) return percent(value);
    if (Number.isInteger(value) && /step|rank|seed|pid/.test(name)) return String(value);
  }
  if (Array.isArray(value) && value.length > 12) {
    return `${value.slice(0, 12).map(plain).join(", ")} and ${value.length - 12} more`;
  }
  if (typeof value === "object" && value !== null && !Array.isArray(value)) {
    // Parts of the wall time are in nanoseconds.
    const inner = name === "parts" ? "ns" : name;
    return Object.entries(value)
      .filter(([, each]) => each !== 0 && each !== null)
      .map(([key, each]) => `${key} ${evidenceText(inner, each)}`)
      .join(", ");
  }
  return plain(value);
}

/** Where the page shows what the finding is about. */
function linksOf(run: string, { metric, phase, steps, ranks, rule }: Finding): [string, string][] {
  const links: [string, string][] = [];
  const first = steps[0];
  if (metric) {
    const around = first === undefined ? {} : { from: Math.max(0, first - 100), to: (steps.at(-1) ?? first) + 100 };
    links.push(["Chart", href(["run", run, "metrics"], { q: metric, ...(steps.length < 50 ? around : {}) })]);
  }
  if (ranks.length || phase) links.push(["Ranks", href(["run", run, "ranks"], { phase })]);
  if (first !== undefined || rule === "hang" || rule === "died") {
    links.push(["Timeline", href(["run", run, "timeline"], { step: first, rank: ranks[0] })]);
  }
  return links;
}
