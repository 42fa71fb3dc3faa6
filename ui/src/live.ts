// Live updates: one stream of events for the run on the screen, or for the list of runs.

import { useEffect, useRef, useState } from "preact/hooks";
import type { LiveEvent } from "./types";

const THROTTLE_MS = 1000;
const LONGEST_PAUSE_MS = 15_000;

interface Subject {
  /** Grows with every change that the page knows of. */
  version: number;
  /** The state that the server sent last. The first one of a live run counts as a change: what is shown may be older. */
  state: string | null;
  announced: number;
  timer: number;
  listeners: Set<() => void>;
}

const subjects = new Map<string, Subject>();

function subjectOf(run: string): Subject {
  let subject = subjects.get(run);
  if (!subject) {
    subject = { version: 0, state: null, announced: 0, timer: 0, listeners: new Set() };
    subjects.set(run, subject);
  }
  return subject;
}

/** How often a run has changed, as far as the page knows. "" is the list of runs. */
export function versionOf(run: string): number {
  return subjectOf(run).version;
}

/** Call `listener` when a run has changed, at most once a second. Returns the function that stops it. */
export function onVersion(run: string, listener: () => void): () => void {
  const { listeners } = subjectOf(run);
  listeners.add(listener);
  return () => void listeners.delete(listener);
}

/** The server sent a state of the run: if it is another one than before, what is on the screen is asked again. */
function receive(run: string, state: string, isShown: boolean): void {
  const subject = subjectOf(run);
  if (subject.state === state) return;
  const isFirst = subject.state === null;
  subject.state = state;
  if (subject.timer || (isFirst && isShown)) return;
  subject.timer = window.setTimeout(() => announce(subject), Math.max(0, subject.announced + THROTTLE_MS - Date.now()));
}

function announce(subject: Subject): void {
  if (isBusy()) {
    // A slow server: do not ask again before it has answered.
    subject.timer = window.setTimeout(() => announce(subject), THROTTLE_MS / 2);
    return;
  }
  subject.timer = 0;
  subject.announced = Date.now();
  subject.version += 1;
  for (const listener of [...subject.listeners]) listener();
}

let isBusy = (): boolean => false;

/** Tell how to find out whether requests are waiting for the server. */
export function setBusyTest(test: () => boolean): void {
  isBusy = test;
}

export type Link = "off" | "connecting" | "on";

export interface Live {
  event: LiveEvent | null;
  link: Link;
}

/**
 * Follow a run ("" for the list of runs, null for nothing). Reconnects by itself; pauses in hidden tabs.
 * `shown` is the status on the screen: if an ended run has that status, there is nothing new to ask for.
 */
export function useLive(run: string | null, shown?: string): Live {
  const [event, setEvent] = useState<LiveEvent | null>(null);
  const [link, setLink] = useState<Link>("off");
  const status = useRef(shown);
  status.current = shown;
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
        receive(run, `${next.version} ${next.status}`, next.status !== "running" && next.status === status.current);
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
