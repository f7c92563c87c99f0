// A colour for each job, the same on every reload: by order of submission. The colours are in style.css.

const COLOURS = 16;
const assigned = new Map();

export function giveColours(jobs, segments) {
  const first = new Map();
  for (const job of jobs) first.set(job.id, job.submitted ?? 0);
  for (const segment of segments) if (!first.has(segment.job)) first.set(segment.job, segment.begin);
  const order = [...first].sort(([one, early], [other, late]) => early - late || compare(one, other));
  for (const [id] of order) if (!assigned.has(id)) assigned.set(id, assigned.size % COLOURS);
}

export function colourOf(id) {
  return assigned.has(id) ? `c${assigned.get(id)}` : "none";
}

function compare(one, other) {
  return String(one).localeCompare(String(other), "en", { numeric: true });
}
