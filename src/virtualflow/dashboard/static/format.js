// Numbers, times and names as the page shows them.

const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
export const NOTHING = "–";

export function count(value) {
  return value == null ? NOTHING : grouped.format(value);
}

export function significant(value, digits = 4) {
  if (value == null || !Number.isFinite(value)) return NOTHING;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e6)) return value.toExponential(2);
  return value.toFixed(Math.max(0, digits - 1 - Math.max(0, Math.floor(Math.log10(size || 1)))));
}

export function rate(value) {
  if (value == null) return NOTHING;
  if (value === 0) return "0";
  if (value >= 10000) return `${(value / 1000).toFixed(1)}k`;
  return value >= 100 ? grouped.format(value) : value.toFixed(1);
}

export function milliseconds(value) {
  return value >= 100 ? grouped.format(value) : value.toFixed(1);
}

export function duration(seconds) {
  if (seconds == null) return NOTHING;
  const whole = Math.max(0, Math.round(seconds));
  const two = (number) => String(number).padStart(2, "0");
  const pair = (large, big, small, little) =>
    `${Math.floor(whole / large)}${big}\u202f${two(Math.floor((whole % large) / small))}${little}`;
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return pair(60, "m", 1, "s");
  if (whole < 48 * 3600) return pair(3600, "h", 60, "m");
  return pair(86400, "d", 3600, "h");
}

/** For an axis: a round number of hours needs no minutes. */
export function roundDuration(seconds) {
  return seconds === 0 ? "0" : duration(seconds).replace(/\u202f00[smh]$/, "");
}

export function clock(seconds, withSeconds = true) {
  const options = { hour: "2-digit", minute: "2-digit", hour12: false };
  if (withSeconds) options.second = "2-digit";
  return new Date(seconds * 1000).toLocaleTimeString("en-GB", options);
}

/** 1,536 MB are 1.5 GB. */
export function bytes(value) {
  const megabytes = value / 2 ** 20;
  if (megabytes < 1000) return `${Math.round(megabytes)} MB`;
  return `${(megabytes / 1024).toFixed(megabytes < 10240 ? 1 : 0)} GB`;
}

/** The time, and the day unless it is today. */
export function moment(seconds) {
  const date = new Date(seconds * 1000);
  if (date.toDateString() === new Date().toDateString()) return clock(seconds);
  return `${clock(seconds, false)}, ${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })}`;
}

/** Whole numbers in a row become a range: 0–3, 6. */
export function ranges(numbers) {
  const parts = [];
  for (const number of [...numbers].sort((one, other) => one - other)) {
    const last = parts.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else parts.push([number, number]);
  }
  return parts.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");
}

export function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

/** "4 V100 + 2 P100" */
export function typeCounts(types) {
  return Object.entries(types)
    .map(([type, number]) => `${number} ${type}`)
    .join(" + ");
}

/** A round step for an axis of *span* with about *wanted* ticks; for seconds, one that people use. */
export function axisStep(span, wanted, ofTime) {
  const rough = span / Math.max(1, wanted);
  if (ofTime) {
    const friendly = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
    const step = friendly.find((seconds) => seconds >= rough);
    return step ?? 86400 * axisStep(span / 86400, wanted, false);
  }
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}

/** A command line as a shell would split it, with quotes. */
export function splitArguments(text) {
  const words = text.matchAll(/(?:[^\s"']+|"(?:\\.|[^"\\])*"|'[^']*')+/g);
  const unquote = (word) =>
    word.replace(/"((?:\\.|[^"\\])*)"|'([^']*)'/g, (_, double, single) => single ?? double.replace(/\\(.)/g, "$1"));
  return [...words].map(([word]) => unquote(word));
}
