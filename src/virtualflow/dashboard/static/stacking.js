// Who had how many devices when, as boxes. Pure functions: history in, boxes out.

const MOST_BOXES = 4000; // beyond, short moments are left out until it fits

const heightOf = (segment) => Object.values(segment.types).reduce((sum, number) => sum + number, 0);
const mixes = (segment) => Object.keys(segment.types).length > 1;

/** Clip to a window, and close what still runs. */
export function clip(segments, begin, end, now) {
  return segments
    .map((segment) => ({ ...segment, begin: Math.max(begin, segment.begin), end: Math.min(end, segment.end ?? now) }))
    .filter((segment) => segment.end > segment.begin);
}

/** Jobs on top of each other, the first to arrive at the bottom, as in the paper. */
export function stacked(segments, shortest) {
  return few((least) => pile(segments, least), shortest);
}

/** A row for each device; neighbours of one job are one box. */
export function placed(segments, shortest, rows) {
  return few(
    (least) =>
      place(
        segments.filter((segment) => segment.end - segment.begin >= least),
        rows,
      ),
    shortest,
  );
}

/** Not too many boxes; `coarse` is the length of the moments that were left out for it, or null. */
function few(draw, shortest) {
  for (let least = shortest; ; least *= 2) {
    const boxes = draw(least);
    if (boxes.length <= MOST_BOXES) return { boxes, coarse: least > shortest ? least : null };
  }
}

function pile(segments, least) {
  const sorted = [...segments].sort((one, other) => one.begin - other.begin);
  const rank = new Map();
  for (const segment of sorted) if (!rank.has(segment.job)) rank.set(segment.job, rank.size);
  const moments = thin(
    sorted.flatMap((segment) => [segment.begin, segment.end]),
    least,
  );
  const boxes = [];
  let open = new Map();
  let running = [];
  let next = 0;
  for (let index = 0; index + 1 < moments.length; index++) {
    const [begin, end] = [moments[index], moments[index + 1]];
    const middle = (begin + end) / 2;
    while (next < sorted.length && sorted[next].begin <= middle) running.push(sorted[next++]);
    running = running.filter((segment) => segment.end > middle);
    running.sort((one, other) => rank.get(one.job) - rank.get(other.job));
    const still = new Map();
    let bottom = 0;
    for (const segment of running) {
      const height = heightOf(segment);
      const box = grown(open.get(segment.job), segment, begin, end, bottom, height);
      if (box.begin === begin) boxes.push(box);
      still.set(segment.job, box);
      bottom += height;
    }
    open = still;
  }
  return boxes;
}

function grown(box, segment, begin, end, bottom, height) {
  if (box && box.bottom === bottom && box.height === height && box.mixed === mixes(segment)) {
    box.end = end;
    return box;
  }
  return { ...segment, begin, end, bottom, height, mixed: mixes(segment) };
}

function thin(moments, least) {
  const kept = [];
  for (const moment of [...new Set(moments)].sort((one, other) => one - other)) {
    if (!kept.length || moment - kept.at(-1) >= least) kept.push(moment);
  }
  return kept;
}

function place(segments, rows) {
  const boxes = [];
  for (const segment of segments) {
    const places = segment.devices.map((device) => rows.get(device)).filter((row) => row !== undefined);
    places.sort((one, other) => one - other);
    let first = places[0];
    places.forEach((row, index) => {
      if (places[index + 1] === row + 1) return;
      boxes.push({ ...segment, bottom: first, height: row - first + 1, mixed: mixes(segment) });
      first = places[index + 1];
    });
  }
  return boxes;
}
