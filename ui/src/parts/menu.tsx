import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

/** A button that opens a panel. Escape, or a click elsewhere, closes it. */
export function Menu({ label, children }: { label: string; children: ComponentChildren }) {
  const [isOpen, set] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const panel = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    // A panel that would leave the screen on the right moves to the left.
    if (!isOpen || !panel.current) return;
    const { right } = panel.current.getBoundingClientRect();
    const over = right - document.documentElement.clientWidth + 12;
    panel.current.style.left = over > 0 ? `${-over}px` : "0";
  }, [isOpen]);
  useEffect(() => {
    if (!isOpen) return;
    const outside = (event: PointerEvent): void => {
      if (!box.current?.contains(event.target as Node)) set(false);
    };
    const escape = (event: KeyboardEvent): void => {
      if (event.key !== "Escape") return;
      set(false);
      button.current?.focus();
    };
    document.addEventListener("pointerdown", outside);
    document.addEventListener("keydown", escape);
    box.current?.querySelector<HTMLElement>(".menu-panel input")?.focus({ preventScroll: true });
    return () => {
      document.removeEventListener("pointerdown", outside);
      document.removeEventListener("keydown", escape);
    };
  }, [isOpen]);
  return (
    <div class="menu" ref={box}>
      <button type="button" class="secondary" ref={button} aria-expanded={isOpen} onClick={() => set(!isOpen)}>
        {label}
        <svg viewBox="0 0 10 6" width="9" height="6" aria-hidden="true">
          <path d="M1 1l4 4 4-4" fill="none" stroke="currentColor" stroke-width="1.500" />
        </svg>
      </button>
      {isOpen && (
        <div class="menu-panel" ref={panel}>
          {children}
        </div>
      )}
    </div>
  );
}
