// Live updates: one stream of events for the run on the screen, or for the list of runs.

import { useEffect, useState } from "preact/hooks";
import type { LiveEvent } from "./types";

const versions = new Map<string, number>();
const listeners = new Map<string, Set<() => void>>();
const THROTTLE_MS = 1000;
const LONGEST_PAUSE_MS = 15_000;

/** How often a run has changed, as far as the page knows. "" is the list of runs. */
export function versionOf(run: string): number {
  return versions.get(run) ?? 0;
}

/** Call `listener` when a run has changed, at most once a second. Returns the function that stops it. */
export function onVersion(run: string, listener: () => void): () => void {
  const set = listeners.get(run) ?? new Set();
  listeners.set(run, set.add(listener));
  return () => void set.delete(listener);
}

const scheduled = new Map<string, number>();
const announced = new Map<string, number>();

function changed(run: string, version: number): void {
  if (versionOf(run) === version) return;
  const isFirst = !versions.has(run);
  if (isFirst && version === 0) return;
  if (isFirst) {
    // Answers from before the first event are of this version, or a moment older.
    versions.set(run, version);
    announce(run);
    return;
  }
  if (scheduled.has(run)) {
    clearTimeout(scheduled.get(run));
  }
  const pause = Math.max(0, (announced.get(run) ?? 0) + THROTTLE_MS - Date.now());
  scheduled.set(
    run,
    window.setTimeout(() => {
      scheduled.delete(run);
      versions.set(run, version);
      announce(run);
    }, pause),
  );
}

function announce(run: string): void {
  announced.set(run, Date.now());
  for (const listener of [...(listeners.get(run) ?? [])]) listener();
}

export type Link = "off" | "connecting" | "on";

export interface Live {
  event: LiveEvent | null;
  link: Link;
}

/** Follow a run ("" for the list of runs, null for nothing). Reconnects by itself; pauses in hidden tabs. */
export function useLive(run: string | null): Live {
  const [event, setEvent] = useState<LiveEvent | null>(null);
  const [link, setLink] = useState<Link>("off");
  useEffect(() => {
    setEvent(null);
    setLink("off");
    if (run === null || typeof EventSource === "undefined") return;
    let source: EventSource | null = null;
    let timer = 0;
    let pause = 1000;
    const open = (): void => {
      if (document.hidden || source) return;
      setLink("connecting");
      source = new EventSource(run ? `/api/live?run=${encodeURIComponent(run)}` : "/api/live");
      source.onmessage = (message) => {
        let next: LiveEvent;
        try {
          next = JSON.parse(message.data as string) as LiveEvent;
        } catch {
          return;
        }
        pause = 1000;
        setLink("on");
        setEvent(next);
        changed(run, next.version);
      };
      source.onerror = () => {
        close();
        timer = window.setTimeout(open, pause);
        pause = Math.min(LONGEST_PAUSE_MS, pause * 2);
      };
    };
    const close = (): void => {
      source?.close();
      source = null;
      setLink("off");
    };
    const visibility = (): void => {
      clearTimeout(timer);
      if (document.hidden) close();
      else open();
    };
    open();
    document.addEventListener("visibilitychange", visibility);
    return () => {
      document.removeEventListener("visibilitychange", visibility);
      clearTimeout(timer);
      close();
    };
  }, [run]);
  return { event, link };
}
