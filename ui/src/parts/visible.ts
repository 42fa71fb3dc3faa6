import type { RefObject } from "preact";
import { useEffect, useState } from "preact/hooks";
import { isReport } from "../api";

/** Parts of a report from disk that are shown wherever they are, so that they are there when it is printed. */
const MOST_ALWAYS = 40;
let always = 0;

/** Parts of a page that are drawn for printing, wherever they are. */
const MOST_PRINTED = 60;
const printed = new Set<(on: boolean) => void>();

/** Show the first parts of the page although they are not on the screen, until it is called with false. */
export function showAll(on: boolean): void {
  let left = MOST_PRINTED;
  for (const show of printed) {
    show(on && left > 0);
    left -= 1;
  }
}

/** Whether an element is on the screen or close to it, or printed. */
export function useVisible(ref: RefObject<Element | null>, margin = 500): boolean {
  const [isAlways] = useState(() => typeof IntersectionObserver === "undefined" || (isReport && always++ < MOST_ALWAYS));
  const [isVisible, set] = useState(isAlways);
  const [isPrinted, setPrinted] = useState(false);
  useEffect(() => {
    printed.add(setPrinted);
    return () => void printed.delete(setPrinted);
  }, []);
  useEffect(() => {
    const element = ref.current;
    if (isAlways || !element) return;
    const observer = new IntersectionObserver((entries) => set(entries.some((entry) => entry.isIntersecting)), {
      rootMargin: `${margin}px 0px`,
    });
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return isVisible || isPrinted;
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
