// Small marks that have the same meaning everywhere: status, severity, tags, live.

import type { Link } from "../live";
import type { Severity, Status } from "../types";

const TONES: Record<string, string> = {
  running: "accent",
  finished: "good",
  failed: "critical",
  killed: "critical",
  interrupted: "warning",
};

/** The status of a run. The shape of its mark differs too, not only its colour. */
export function StatusBadge({ status, text }: { status: Status; text?: string }) {
  return (
    <span class={`badge tone-${TONES[status] ?? "plain"}`}>
      <StatusMark status={status} />
      {text ?? status}
    </span>
  );
}

export function StatusMark({ status }: { status: Status }) {
  return (
    <svg class={`mark tone-${TONES[status] ?? "plain"}`} viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">
      {status === "running" ? (
        <circle cx="6" cy="6" r="4" fill="currentColor" />
      ) : status === "finished" ? (
        <path d="M2.500 6.300 5 8.700 9.600 3.500" fill="none" stroke="currentColor" stroke-width="1.700" stroke-linecap="round" stroke-linejoin="round" />
      ) : status === "failed" || status === "killed" ? (
        <path d="M3 3l6 6M9 3l-6 6" stroke="currentColor" stroke-width="1.700" stroke-linecap="round" />
      ) : status === "interrupted" ? (
        <path d="M4 3v6M8 3v6" stroke="currentColor" stroke-width="1.700" stroke-linecap="round" />
      ) : (
        <circle cx="6" cy="6" r="3.500" fill="none" stroke="currentColor" stroke-width="1.400" />
      )}
    </svg>
  );
}

export const SEVERITY_MARKS: Record<Severity, string> = { critical: "!!", warning: "!", note: "·" };

/** The mark of the command line: !! is critical, ! a warning, · a note. */
export function SeverityMark({ severity }: { severity: Severity }) {
  return (
    <span class={`severity severity-${severity}`} title={severity}>
      <span aria-hidden="true">{SEVERITY_MARKS[severity]}</span>
      <span class="visually-hidden">{severity}</span>
    </span>
  );
}

export function Tag({ text }: { text: string }) {
  return <span class="tag">{text}</span>;
}

/** Calm, and not the only sign: the head also says "running". */
export function LiveMark({ link }: { link: Link }) {
  const text = link === "on" ? "live" : "connecting";
  return (
    <span class={`live live-${link}`}>
      <span class="live-dot" aria-hidden="true" />
      {text}
    </span>
  );
}

type Counts = { critical: number; warning: number; note: number };

/** Findings of a run by severity: "!! 1  ! 3". */
export function Findings({ counts }: { counts: Counts | null }) {
  if (!counts) return <span class="muted">…</span>;
  const severities = (["critical", "warning", "note"] as const).filter((severity) => counts[severity] > 0);
  if (!severities.length) return <span class="muted">none</span>;
  return (
    <span class="finding-counts">
      {severities.map((severity) => (
        <span key={severity} class={`finding-count severity-${severity}`} title={`${counts[severity]} ${severity}`}>
          <span aria-hidden="true">{SEVERITY_MARKS[severity]}</span>
          {counts[severity]}
          <span class="visually-hidden"> {severity}</span>
        </span>
      ))}
    </span>
  );
}
