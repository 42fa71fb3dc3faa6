import type { RefObject } from "preact";
import { useEffect, useState } from "preact/hooks";
import { isReport } from "../api";

/** Whether an element is on the screen or close to it. A report from disk shows everything: it is printed. */
export function useVisible(ref: RefObject<Element | null>, margin = 500): boolean {
  const [isVisible, set] = useState(isReport || typeof IntersectionObserver === "undefined");
  useEffect(() => {
    const element = ref.current;
    if (isReport || !element || typeof IntersectionObserver === "undefined") return;
    const observer = new IntersectionObserver((entries) => set(entries.some((entry) => entry.isIntersecting)), {
      rootMargin: `${margin}px 0px`,
    });
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return isVisible;
}

/** The width of an element in CSS pixels, 0 before it is known. */
export function useWidth(ref: RefObject<Element | null>): number {
  const [width, set] = useState(0);
  useEffect(() => {
    const element = ref.current;
    if (!element) return;
    set(Math.floor(element.getBoundingClientRect().width));
    const observer = new ResizeObserver(([entry]) => entry && set(Math.floor(entry.contentRect.width)));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return width;
}
