// The allocation over time as boxes: the devices of each job. Pure functions: history in, boxes out.

const MOST_BOXES = 4000; // with more, short segments are left out until the rest fits

const heightOf = (segment) => Object.values(segment.types).reduce((sum, number) => sum + number, 0);
const mixes = (segment) => Object.keys(segment.types).length > 1;

/** Clip to a window, and close what still runs. */
export function clip(segments, begin, end, now) {
  return segments
    .map((segment) => ({ ...segment, begin: Math.max(begin, segment.begin), end: Math.min(end, segment.end ?? now) }))
    .filter((segment) => segment.end > segment.begin);
}

/** When jobs that had devices had none: paused by their owner, or preempted. A job of *waiting* has not come back yet. */
export function pauses(segments, waiting, now) {
  const last = new Map();
  const gaps = [];
  for (const segment of [...segments].sort((one, other) => one.begin - other.begin)) {
    const before = last.get(segment.job);
    if (before && before.end < segment.begin) gaps.push(pause(segment, before.end, segment.begin));
    if (!before || (segment.end ?? now) >= before.end) last.set(segment.job, { ...segment, end: segment.end ?? now });
  }
  for (const segment of last.values()) {
    if (waiting.has(segment.job) && segment.end < now) gaps.push(pause(segment, segment.end, null));
  }
  return gaps;
}

/** Lanes for pauses that overlap, at most *most*. The job *first* has the lowest one; `left` pauses had no room. */
export function lanes(gaps, most, first) {
  const own = gaps.filter((gap) => gap.job === first);
  const others = gaps.filter((gap) => gap.job !== first).sort((one, other) => one.begin - other.begin);
  const boxes = own.map((gap) => ({ ...gap, lane: 0 }));
  const ends = own.length ? [Infinity] : []; // until when each lane is taken
  for (const gap of others) {
    const free = ends.findIndex((end) => end <= gap.begin);
    const lane = free < 0 ? ends.length : free;
    if (lane >= most) continue;
    ends[lane] = gap.end;
    boxes.push({ ...gap, lane });
  }
  return { boxes, used: ends.length, left: gaps.length - boxes.length };
}

function pause(segment, begin, end) {
  return { job: segment.job, name: segment.name, begin, end, paused: true };
}

/** Jobs on top of each other, the first to arrive at the bottom, as in the paper. */
export function stacked(segments, shortest) {
  return limited((least) => pile(segments, least), shortest);
}

/** A row for each device; neighbours of one job are one box. */
export function placed(segments, shortest, rows) {
  return limited(
    (least) =>
      place(
        segments.filter((segment) => segment.end - segment.begin >= least),
        rows,
      ),
    shortest,
  );
}

/** At most MOST_BOXES boxes; `coarse` is the length of the longest segments that were left out, or null. */
function limited(draw, shortest) {
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
