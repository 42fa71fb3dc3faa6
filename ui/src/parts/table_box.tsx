import type { ComponentChildren } from "preact";

/** A box in which a wide or long table scrolls, by keyboard too. */
export function TableBox({ label, tall = false, children }: { label: string; tall?: boolean; children: ComponentChildren }) {
  return (
    <div class={tall ? "table-box tall" : "table-box"} tabIndex={0} role="region" aria-label={`Table: ${label}`}>
      {children}
    </div>
  );
}
