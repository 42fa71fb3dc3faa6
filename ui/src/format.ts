// Numbers as text, exactly as the command line prints them (src/stepwell/_core/text.py). Python rounds ties to
// the even digit, JavaScript away from zero, so the rounding is done here, on exact digits.

import type { Value } from "./types";

/** Decimal digits of a finite number: value = 0.d1d2d3… × 10^point. */
function digitsOf(value: number): { digits: string; point: number } {
  const [mantissa = "0", exponent = "0"] = Math.abs(value).toExponential(60).split("e");
  return { digits: mantissa.replace(".", ""), point: Number(exponent) + 1 };
}

/** The first `count` digits, rounded half to even; `point` grows if a carry makes the number longer. */
function rounded(digits: string, point: number, count: number): { digits: string; point: number } {
  if (count < 0) return { digits: "", point };
  const kept = digits.slice(0, count);
  const rest = digits.slice(count);
  const half = rest.length ? rest.localeCompare(`5${"0".repeat(rest.length - 1)}`) : -1;
  const isOdd = count > 0 && Number(kept[count - 1]) % 2 === 1;
  if (half < 0 || (half === 0 && !isOdd)) return { digits: kept, point };
  const up = (BigInt(kept || "0") + 1n).toString().padStart(count, "0");
  return up.length > count ? { digits: up, point: point + 1 } : { digits: up, point };
}

function sign(value: number): string {
  return value < 0 || Object.is(value, -0) ? "-" : "";
}

function word(value: number): string {
  return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

/** Python's f"{value:.{places}f}", with commas between thousands if asked. */
export function fixed(value: number, places: number, commas = false): string {
  if (!Number.isFinite(value)) return word(value);
  const exact = digitsOf(value);
  const cut = rounded(exact.digits, exact.point, exact.point + places);
  // With d digits and a point after `point` of them, the text is the digits padded to both sides.
  let whole = "0";
  let part = "0".repeat(places);
  if (cut.digits) {
    const padded = cut.point <= 0 ? "0".repeat(1 - cut.point) + cut.digits : cut.digits;
    const length = Math.max(1, cut.point);
    whole = padded.slice(0, length).padEnd(length, "0");
    part = padded.slice(length).padEnd(places, "0").slice(0, places);
  }
  if (commas) whole = withCommas(whole);
  return sign(value) + whole + (places ? `.${part}` : "");
}

/** Python's f"{value:.{count}g}". */
export function general(value: number, count = 3): string {
  if (!Number.isFinite(value)) return word(value);
  if (value === 0) return `${sign(value)}0`;
  const exact = digitsOf(value);
  const cut = rounded(exact.digits, exact.point, count);
  const digits = cut.digits.slice(0, count);
  const exponent = cut.point - 1;
  if (exponent < -4 || exponent >= count) {
    const tail = digits.slice(1).replace(/0+$/, "");
    const power = Math.abs(exponent).toString().padStart(2, "0");
    return `${sign(value)}${digits[0]}${tail ? `.${tail}` : ""}e${exponent < 0 ? "-" : "+"}${power}`;
  }
  if (cut.point <= 0) return `${sign(value)}0.${"0".repeat(-cut.point)}${digits.replace(/0+$/, "")}`;
  const tail = digits.slice(cut.point).replace(/0+$/, "");
  return `${sign(value)}${digits.slice(0, cut.point)}${tail ? `.${tail}` : ""}`;
}

/** A duration with three significant digits: 1.23 s, 45.6 ms, 2 h 03 min. */
export function duration(ns: number): string {
  const seconds = ns / 1e9;
  if (seconds < 0.9995e-3) return `${general(seconds * 1e6)} µs`;
  if (seconds < 0.9995) return `${general(seconds * 1e3)} ms`;
  if (seconds < 59.95) return `${general(seconds)} s`;
  const whole = Number(fixed(seconds, 0));
  const two = (count: number): string => count.toString().padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
}

/** A number with three significant digits, or more; from 1,000 to a million as a whole number: 4,096. */
export function number(value: Value | undefined, digits = 3): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "string") return value;
  const size = Math.abs(value);
  if (size < 999.5 || size >= 1e6) return general(value, digits);
  return digits > 4 ? withCommas(general(value, digits)) : fixed(value, 0, true);
}

function withCommas(text: string): string {
  return text.replace(/^-?\d+/, (whole) => whole.replace(/\B(?=(\d{3})+$)/g, ","));
}

/** A number per second with three significant digits, and commas between thousands. */
export function rate(value: number): string {
  if (!Number.isFinite(value)) return word(value);
  if (Math.abs(value) < 0.001) return general(value);
  const digits = 2 - Math.floor(Math.log10(Math.abs(value)));
  return fixed(Number(fixedSigned(value, digits)), Math.max(0, digits), true);
}

/** Python's round(value, places), for negative places too. */
function fixedSigned(value: number, places: number): string {
  if (places >= 0) return fixed(value, places);
  const exact = digitsOf(value);
  const cut = rounded(exact.digits, exact.point, exact.point + places);
  return `${sign(value)}${cut.digits || "0"}${"0".repeat(-places)}`;
}

/** A whole number with commas: 12,345. */
export function count(value: number): string {
  return fixed(value, 0, true);
}

/** "1 step", "12 steps". */
export function counted(value: number, noun: string, plural = `${noun}s`): string {
  return `${count(value)} ${value === 1 ? noun : plural}`;
}

/** A number of bytes with three significant digits, or more: 1.23 MB. */
export function size(bytes: number, digits = 3): string {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (bytes < 999.5) return `${general(bytes, digits)} ${unit}`;
    bytes /= 1000;
  }
  return `${general(bytes, digits)} TB`;
}

/** A share of one in percent, with a decimal below 10 %: 41 %, 4.2 %, <0.1 %. */
export function percent(share: number): string {
  if (share > 0 && share < 0.0005) return "<0.1 %";
  return share > 0 && share < 0.0995 ? `${fixed(share * 100, 1)} %` : `${fixed(share * 100, 0)} %`;
}

/** The title of a phase in tables; the user's own spans by name. */
export function phaseTitle(phase: string): string {
  return phase === "ending" ? "after the last step" : phase.replace(/^span:/, "");
}

const sameDay = (a: Date, b: Date): boolean => a.toDateString() === b.toDateString();
const two = (value: number): string => value.toString().padStart(2, "0");

/** A date in local time, to the minute: "today 14:05", "2026-11-18 14:05". */
export function date(ms: number): string {
  const at = new Date(ms);
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return sameDay(at, new Date()) ? `today ${clock}` : `${day(at)} ${clock}`;
}

/** A date in local time, to the second. */
export function exactDate(ms: number): string {
  const at = new Date(ms);
  return `${day(at)} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

function day(at: Date): string {
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

/** The end of the id of a run, to tell apart runs of the same name. */
export function shortId(id: string): string {
  return id.length > 12 ? `…${id.slice(-6)}` : id;
}

/** A value of any kind as one line of text, for tables of settings and evidence. */
export function plain(value: unknown): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return Number.isInteger(value) ? count(value) : number(value);
  if (typeof value === "string") return value;
  if (typeof value === "boolean") return value ? "true" : "false";
  if (Array.isArray(value)) return value.map(plain).join(", ");
  return JSON.stringify(value);
}
