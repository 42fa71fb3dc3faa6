// A bar in parts that add up to a whole, with its table: hovering or focusing one highlights it in the other.

import { useState } from "preact/hooks";
import { phaseColour } from "../colours";
import { duration, percent } from "../format";
import { TableBox } from "./table_box";
import type { PhaseLine } from "../types";

const LEAST_SHARE = 0.001;
const OTHER = "other";

/** The lines, with very small phases added to "other", as in `stepwell report`. */
export function shownPhases(lines: PhaseLine[]): PhaseLine[] {
  const small = lines.filter(({ share, phase }) => share < LEAST_SHARE && phase !== OTHER);
  if (!small.length) return lines;
  const other = lines.find(({ phase }) => phase === OTHER);
  const added = [...small, ...(other ? [other] : [])];
  return [
    ...lines.filter((line) => !added.includes(line)),
    {
      phase: OTHER,
      ns: added.reduce((sum, { ns }) => sum + ns, 0),
      share: added.reduce((sum, { share }) => sum + share, 0),
      p50_ns: other?.p50_ns ?? null,
      p95_ns: other?.p95_ns ?? null,
    },
  ];
}

export function TimeTable({ lines, wall }: { lines: PhaseLine[]; wall: number }) {
  const [chosen, choose] = useState<string | null>(null);
  const phases = shownPhases(lines);
  const hasSteps = phases.some(({ p50_ns }) => p50_ns !== null);
  const dim = (phase: string): string => (chosen && chosen !== phase ? "dim" : chosen === phase ? "lit" : "");
  return (
    <div class="time" onMouseLeave={() => choose(null)}>
      <div class="stack" aria-hidden="true">
        {phases.map(({ phase, ns, share }) => (
          <span
            key={phase}
            class={dim(phase)}
            style={{ flexGrow: ns, background: phaseColour(phase) }}
            title={`${phase}: ${duration(ns)}, ${percent(share)}`}
            onMouseEnter={() => choose(phase)}
          />
        ))}
      </div>
      <TableBox label="Time by phase">
        <table class="data time-table">
          <thead>
            <tr>
              <th scope="col">Phase</th>
              <th scope="col" class="number">Time</th>
              <th scope="col" class="number">Share</th>
              {hasSteps && <th scope="col" class="number" title="Median: in half of the steps, the phase takes less">p50 per step</th>}
              {hasSteps && <th scope="col" class="number" title="In 95 % of the steps, the phase takes less">p95</th>}
            </tr>
          </thead>
          <tbody>
            {phases.map(({ phase, ns, share, p50_ns, p95_ns }) => (
              <tr key={phase} class={dim(phase)} onMouseEnter={() => choose(phase)}>
                <th scope="row">
                  <span class="swatch" style={{ background: phaseColour(phase) }} />
                  {phase}
                </th>
                <td class="number">{duration(ns)}</td>
                <td class="number">{percent(share)}</td>
                {hasSteps && <td class="number">{p50_ns === null ? "" : duration(p50_ns)}</td>}
                {hasSteps && <td class="number">{p95_ns === null ? "" : duration(p95_ns)}</td>}
              </tr>
            ))}
          </tbody>
          <tfoot>
            <tr>
              <th scope="row">Wall time</th>
              <td class="number">{duration(wall)}</td>
              <td class="number">{percent(1)}</td>
              {hasSteps && <td colSpan={2} />}
            </tr>
          </tfoot>
        </table>
      </TableBox>
    </div>
  );
}
