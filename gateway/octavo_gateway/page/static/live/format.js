// Figures and names for people.
const UNITS = [["d", 86400], ["h", 3600], ["min", 60]];

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  for (const [unit, length] of UNITS) if (seconds >= 2 * length) return `${Math.round(seconds / length)} ${unit}`;
  return seconds >= 10 ? `${Math.round(seconds)} s` : `${Math.max(0, seconds).toFixed(1)} s`;
}

export const count = (number) => Math.round(number ?? 0).toLocaleString("en");

export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();

export const short = (id) => id.slice(-8);

export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

// The same hue for a job in its lane and in all maps.
export function hue(id) {
  let hash = 2166136261;
  for (let at = 0; at < id.length; at++) hash = Math.imul(hash ^ id.charCodeAt(at), 16777619);
  return (hash >>> 0) % 360;
}
