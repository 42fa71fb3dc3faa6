// Hash routes: they work on a server and from a file. The query of a route is the whole state of a view, so a
// link restores it.

import { useEffect, useMemo, useState } from "preact/hooks";

export interface Route {
  /** Decoded parts of the path: ["run", "my-run", "metrics"]. */
  parts: string[];
  query: URLSearchParams;
}

/** The route by itself: a page inside a notebook may not change its address. */
let current = typeof location === "undefined" ? "" : location.hash.slice(1);
const listeners = new Set<() => void>();

function parse(text: string): Route {
  const [path = "", query = ""] = split(text);
  const parts = path.split("/").filter(Boolean).map(decode);
  return { parts, query: new URLSearchParams(query) };
}

function split(text: string): [string, string] {
  const at = text.indexOf("?");
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function route(): Route {
  return parse(current);
}

/** The address of a view: href(["run", id, "metrics"], { x: "time" }). */
export function href(parts: string[], query?: Query): string {
  const text = queryText(query);
  return `#/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export type Query = Record<string, string | number | boolean | null | undefined | readonly (string | number)[]>;

function queryText(query: Query | undefined): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value === null || value === undefined || value === "") continue;
    if (Array.isArray(value)) for (const each of value) search.append(name, String(each));
    else search.append(name, String(value));
  }
  return search.toString();
}

/** Go to a view. With `replace`, the back button skips the state before. */
export function navigate(address: string, replace = false): void {
  const next = address.startsWith("#") ? address.slice(1) : address;
  if (next === current) return;
  current = next;
  try {
    if (replace) history.replaceState(null, "", `#${next}`);
    else history.pushState(null, "", `#${next}`);
  } catch {
    // A frame without an address of its own: the route lives in memory only.
  }
  for (const listener of listeners) listener();
}

/** Set parameters of the current route; null or "" removes one. */
export function setParams(changes: Query, replace = true): void {
  const [path, query] = split(current);
  const search = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    search.delete(name);
    if (value === null || value === undefined || value === "") continue;
    if (Array.isArray(value)) for (const each of value) search.append(name, String(each));
    else search.append(name, String(value));
  }
  const text = search.toString();
  navigate(`${path || "/"}${text ? `?${text}` : ""}`, replace);
}

if (typeof window !== "undefined") {
  const follow = (): void => {
    const next = location.hash.slice(1);
    if (next === current) return;
    current = next;
    for (const listener of listeners) listener();
  };
  window.addEventListener("hashchange", follow);
  // In the frame of a notebook a link would lead to the address of the notebook itself.
  if (location.protocol === "about:") document.addEventListener("click", followLink);
  window.addEventListener("popstate", follow);
}

export function useRoute(): Route {
  const [text, setText] = useState(current);
  useEffect(() => {
    const listener = (): void => setText(current);
    listeners.add(listener);
    listener();
    return () => void listeners.delete(listener);
  }, []);
  return useMemo(() => parse(text), [text]);
}

/** One parameter of the route: its value or `initial`, and a function that sets it (`initial` removes it). */
export function useRouteParam(name: string, initial = ""): [string, (value: string | null) => void] {
  const value = useRoute().query.get(name) ?? initial;
  return [value, (next) => setParams({ [name]: next === initial ? null : next })];
}

/** A parameter that may occur several times. */
export function useRouteList(name: string): [string[], (values: string[]) => void] {
  const { query } = useRoute();
  const text = query.getAll(name).join("\n");
  const values = useMemo(() => (text ? text.split("\n") : []), [text]);
  return [values, (next) => setParams({ [name]: next })];
}

/** A window of x; null is the end of the data. */
export type Range = [number | null, number | null];

/** The window of the charts of a view, in the route as `from` and `to`; null is all of it. */
export function useRouteRange(): [Range | null, (range: Range | null) => void] {
  const { query } = useRoute();
  const [from, to] = [query.get("from"), query.get("to")];
  const range = useMemo<Range | null>(() => {
    const [first, last] = [from, to].map((text) => (text === null || !Number.isFinite(Number(text)) ? null : Number(text)));
    if (first == null && last == null) return null;
    return first != null && last != null && last <= first ? null : [first ?? null, last ?? null];
  }, [from, to]);
  return [range, setRange];
}

/** Set the window. The back button returns to the one before. */
export function setRange(range: Range | null): void {
  const round = (value: number | null | undefined): number | null => (value == null ? null : Number(value.toPrecision(8)));
  setParams({ from: round(range?.[0]), to: round(range?.[1]) }, false);
}

function followLink(event: MouseEvent): void {
  const link = event.target instanceof Element ? event.target.closest("a[href^='#']") : null;
  if (!link || event.defaultPrevented || event.button !== 0) return;
  event.preventDefault();
  navigate((link.getAttribute("href") ?? "#").slice(1));
}
