// Answers of the server, or of the data inside a one-file report.

import { useEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";
import { onVersion, setBusyTest, versionOf } from "./live";
import type { SeriesAnswer } from "./types";

export type Params = Record<string, string | number | boolean | null | undefined | readonly (string | number)[]>;

export interface Answer<T> {
  data: T | null;
  /** One sentence for the reader. */
  error: string | null;
  /** True until the first answer to these parameters; `data` is then the answer before, if there is one. */
  loading: boolean;
}

// The one-file report

interface Contained {
  answers: Record<string, unknown>;
  report: boolean;
}

/** A report has one answer for each of these, whatever the size of the window is. */
const SIZES = new Set(["start", "end", "width", "height", "points", "offset", "lanes"]);
const NOT_CONTAINED = "This is not contained in this file. Open the run with `stepwell ui`.";

const contained = readContained();
export const isReport = contained !== null;

function readContained(): Map<string, unknown> | null {
  const element = typeof document === "undefined" ? null : document.getElementById("stepwell-data");
  if (!element) return null;
  try {
    const { answers } = JSON.parse(element.textContent ?? "") as Contained;
    return new Map(Object.entries(answers).map(([key, answer]) => [reportKey(key), answer]));
  } catch {
    return new Map();
  }
}

/** The id of the run in a one-file report. */
export function containedRun(): string | null {
  for (const key of contained?.keys() ?? []) {
    const match = /^\/api\/runs\/([^/?]+)\?$/.exec(key);
    if (match?.[1]) return decodeURIComponent(match[1]);
  }
  return null;
}

function reportKey(address: string): string {
  const [path = "", query = ""] = address.split("?", 2);
  const kept = [...new URLSearchParams(query)].filter(([name]) => !SIZES.has(name));
  kept.sort(([a, x], [b, y]) => (a < b ? -1 : a > b ? 1 : x < y ? -1 : x > y ? 1 : 0));
  return `${path}?${new URLSearchParams(kept)}`;
}

function fromReport(address: string): unknown {
  const key = reportKey(address);
  if (contained?.has(key)) return contained.get(key);
  if (key.includes("/series?")) return seriesFromReport(key);
  throw new Error(NOT_CONTAINED);
}

/** Series are looked for one by one: the report may contain them in other groups than the page asks for. */
function seriesFromReport(key: string): SeriesAnswer {
  const [path = "", text = ""] = key.split("?", 2);
  const query = new URLSearchParams(text);
  const names = query.getAll("name");
  const rest = (from: URLSearchParams): string => [...from].filter(([name]) => name !== "name").join("&");
  const answer: SeriesAnswer = { x: (query.get("x") ?? "step") as SeriesAnswer["x"], series: [] };
  const seen = new Set<string>();
  for (const [other, value] of contained ?? []) {
    const [otherPath, otherText] = other.split("?", 2);
    if (otherPath !== path || rest(new URLSearchParams(otherText)) !== rest(query)) continue;
    for (const series of (value as SeriesAnswer).series) {
      const mark = `${series.name}\n${series.rank}`;
      if (!names.includes(series.name) || seen.has(mark)) continue;
      seen.add(mark);
      answer.series.push(series);
    }
  }
  if (!answer.series.length) throw new Error(NOT_CONTAINED);
  return answer;
}

// The server

export function addressOf(path: string, params: Params = {}): string {
  const search = new URLSearchParams();
  for (const name of Object.keys(params).sort()) {
    const value = params[name];
    if (value === null || value === undefined || value === "") continue;
    if (Array.isArray(value)) for (const each of value) search.append(name, String(each));
    else search.append(name, String(value));
  }
  const text = search.toString();
  return text ? `${path}?${text}` : path;
}

/** The run that an address is about; "" for addresses about the list of runs. */
function runOf(address: string): string {
  const match = /^\/api\/runs\/([^/?]+)/.exec(address);
  return match?.[1] ? decodeURIComponent(match[1]) : "";
}

/** Characters of all kept answers. In memory they are several times larger; one timeline has millions. */
const MOST_CHARACTERS = 40_000_000;
const MOST_AT_ONCE = 5;

interface Kept {
  version: number;
  answer: unknown;
  length: number;
}

const cache = new Map<string, Kept>();
let characters = 0;
const inFlight = new Map<string, Promise<unknown>>();
const waiting: (() => void)[] = [];
let active = 0;
setBusyTest(() => active > 0);

/** Whether the page waits for no answer. */
export function isIdle(): boolean {
  return active === 0 && waiting.length === 0;
}

/** The answer to a request. Equal requests in flight are sent once; an answer is kept until the run changes. */
export function get<T>(path: string, params: Params = {}): Promise<T> {
  const address = addressOf(path, params);
  if (contained) {
    try {
      return Promise.resolve(fromReport(address) as T);
    } catch (error) {
      return Promise.reject(error);
    }
  }
  const version = versionOf(runOf(address));
  const kept = cache.get(address);
  if (kept?.version === version) return Promise.resolve(kept.answer as T);
  const key = `${version} ${address}`;
  const sent = inFlight.get(key);
  if (sent) return sent as Promise<T>;
  const promise = queued(() => request(address))
    .then(({ answer, length }) => {
      if (againMs(answer) === null) keep(address, { version, answer, length });
      return answer;
    })
    .finally(() => inFlight.delete(key));
  inFlight.set(key, promise);
  return promise as Promise<T>;
}

function keep(address: string, entry: Kept): void {
  forget(address);
  cache.set(address, entry);
  characters += entry.length;
  for (const oldest of cache.keys()) {
    if (characters <= MOST_CHARACTERS || oldest === address) return;
    forget(oldest);
  }
}

function forget(address: string): void {
  characters -= cache.get(address)?.length ?? 0;
  cache.delete(address);
}

/** The server is still computing the rest of such an answer. */
function isPartial(answer: unknown): boolean {
  return typeof answer === "object" && answer !== null && (answer as { is_partial?: unknown }).is_partial === true;
}

const ASK_AGAIN_MS = 1000;

/** Answers about a live run that may miss its newest records, and when the server has a newer one. */
const old = new WeakMap<object, number>();

/** After which time to ask for an answer again; null if it is complete and up to date. */
function againMs(answer: unknown): number | null {
  if (isPartial(answer)) return ASK_AGAIN_MS;
  return (typeof answer === "object" && answer !== null && old.get(answer)) || null;
}

function queued<T>(send: () => Promise<T>): Promise<T> {
  const start = async (): Promise<T> => {
    active += 1;
    try {
      return await send();
    } finally {
      active -= 1;
      waiting.shift()?.();
    }
  };
  if (active < MOST_AT_ONCE) return start();
  return new Promise((resolve, reject) => waiting.push(() => start().then(resolve, reject)));
}

async function request(address: string): Promise<{ answer: unknown; length: number }> {
  let response: Response;
  try {
    response = await fetch(address, { credentials: "same-origin", headers: { Accept: "application/json" } });
  } catch {
    throw new Error("The server does not answer. Is `stepwell ui` still running?");
  }
  const about = /^\/api\/runs\/[^/?]+(?:\/[a-z]+)?(?:\?|$)/.test(address) ? runOf(address) : "";
  if (about && missing.has(about) !== (response.status === 404)) {
    if (response.status === 404) missing.add(about);
    else missing.delete(about);
    for (const listener of missingListeners) listener();
  }
  if (response.ok) {
    const text = await response.text();
    const answer: unknown = JSON.parse(text);
    const seconds = Number(response.headers.get("retry-after"));
    if (seconds > 0 && typeof answer === "object" && answer !== null) old.set(answer, 1000 * seconds);
    return { answer, length: text.length };
  }
  throw new Error(await refusal(response));
}

/** Runs that the server no longer has, or never had. */
const missing = new Set<string>();
const missingListeners = new Set<() => void>();

/** Whether the server said that there is no such run, in the last answer about it. */
export function useMissing(run: string): boolean {
  const [isMissing, set] = useState(missing.has(run));
  useEffect(() => {
    const listener = (): void => set(missing.has(run));
    missingListeners.add(listener);
    listener();
    return () => void missingListeners.delete(listener);
  }, [run]);
  return isMissing;
}

async function refusal(response: Response): Promise<string> {
  if (response.status === 401 || response.status === 403) {
    return "Access denied. Open the link that `stepwell ui` printed; it contains the token.";
  }
  try {
    const body = (await response.json()) as { error?: unknown; detail?: unknown };
    const sentence = body.error ?? body.detail;
    if (typeof sentence === "string" && sentence) return sentence;
  } catch {
    // Not JSON: the status has to do.
  }
  if (response.status === 404) return "The server has no such record.";
  return `The server could not answer (status ${response.status}).`;
}

interface State<T> extends Answer<T> {
  address: string | null;
}

/** The answer to a request, asked again when the run changes. A path of null asks nothing. */
export function useAnswer<T>(path: string | null, params: Params = {}): Answer<T> {
  const address = path === null ? null : addressOf(path, params);
  const [state, set] = useReducer<State<T>, State<T>>((_, next) => next, {
    data: null,
    error: null,
    loading: true,
    address: null,
  });
  const latest = useRef(state);
  latest.current = state;
  useEffect(() => {
    if (address === null) return;
    let stale = false;
    let timer = 0;
    const ask = (): void => {
      clearTimeout(timer);
      const [where = "", query = ""] = address.split("?", 2);
      const params: Record<string, string[]> = {};
      for (const [name, value] of new URLSearchParams(query)) (params[name] ??= []).push(value);
      get<T>(where, params).then(
        (data) => {
          if (stale) return;
          set({ data, error: null, loading: false, address });
          const again = againMs(data);
          if (again !== null) timer = window.setTimeout(ask, again);
        },
        (error: Error) =>
          stale ||
          set({
            // A live view keeps what it shows while the server is away.
            data: latest.current.address === address ? latest.current.data : null,
            error: error.message,
            loading: false,
            address,
          }),
      );
    };
    ask();
    const forget = onVersion(runOf(address), ask);
    return () => {
      stale = true;
      clearTimeout(timer);
      forget();
    };
  }, [address]);
  return useMemo(() => {
    if (address === null) return { data: null, error: null, loading: false };
    const isCurrent = state.address === address;
    return { data: state.data, error: isCurrent ? state.error : null, loading: !isCurrent };
  }, [state, address]);
}

/** Answers to several requests. While new ones are loading, the answers before stay, by their place in the list. */
export function useAnswers<T>(addresses: string[]): Answer<T>[] {
  const key = addresses.join("\n");
  const [, redraw] = useReducer<number, void>((count) => count + 1, 0);
  const results = useRef(new Map<string, { data: T | null; error: string | null }>());
  const before = useRef<(T | null)[]>([]);
  useEffect(() => {
    let stale = false;
    const wanted = key ? key.split("\n") : [];
    const forget: (() => void)[] = [];
    for (const address of wanted) {
      let timer = 0;
      const ask = (): void => {
        clearTimeout(timer);
        const [where = "", query = ""] = address.split("?", 2);
        const params: Record<string, string[]> = {};
        for (const [name, value] of new URLSearchParams(query)) (params[name] ??= []).push(value);
        get<T>(where, params).then(
          (data) => {
            settle(address, { data, error: null });
            const again = againMs(data);
            if (again !== null && !stale) timer = window.setTimeout(ask, again);
          },
          (error: Error) =>
            settle(address, { data: results.current.get(address)?.data ?? null, error: error.message }),
        );
      };
      ask();
      forget.push(onVersion(runOf(address), ask), () => clearTimeout(timer));
    }
    const settle = (address: string, result: { data: T | null; error: string | null }): void => {
      if (stale) return;
      for (const known of results.current.keys()) if (!wanted.includes(known)) results.current.delete(known);
      results.current.set(address, result);
      redraw();
    };
    return () => {
      stale = true;
      for (const each of forget) each();
    };
  }, [key]);
  return addresses.map((address, place) => {
    const result = results.current.get(address);
    if (result?.data) before.current[place] = result.data;
    return {
      data: result ? result.data : (before.current[place] ?? null),
      error: result?.error ?? null,
      loading: !result,
    };
  });
}
