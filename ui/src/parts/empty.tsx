import type { ComponentChildren } from "preact";

interface Props {
  title: string;
  /** How to record it: a sentence. */
  children?: ComponentChildren;
  /** Lines of code that record it. */
  code?: string;
}

/** Says plainly that there is nothing to show, and how to record it. */
export function Empty({ title, children, code }: Props) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children && <p>{children}</p>}
      {code && <pre tabIndex={0}>{code}</pre>}
    </div>
  );
}

/** The error of a request, as one sentence. */
export function Trouble({ error }: { error: string }) {
  return (
    <p class="trouble" role="alert">
      {error}
    </p>
  );
}

/** Keeps the place of something that is being loaded, so that nothing jumps. */
export function Loading({ height = 160, label = "Loading" }: { height?: number; label?: string }) {
  return (
    <div class="loading" style={{ height: `${height}px` }} role="status">
      <span class="visually-hidden">{label}</span>
    </div>
  );
}
