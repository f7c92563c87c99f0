// The allocation chart: a coloured box per job over time, hatched where it mixes device types; above, who is paused.

import { byId, reconcile, segmented, set, svg, text } from "./dom.js";
import { axisStep, clock, duration, plural, roundDuration, typeCounts } from "./format.js";
import { colourOf } from "./colours.js";
import { clip, lanes, pauses, placed, stacked } from "./stacking.js";

const MARGIN = { left: 48, right: 10, top: 8, bottom: 22 };
const LANE = 15; // pixels for the jobs that are paused, above those that run
const MOST_LANES = 4;
const LETTER = 6.4; // pixels, about, in the font of the labels

export class Allocation {
  constructor(select) {
    this.picture = byId("allocation-chart");
    this.tooltip = byId("allocation-tooltip");
    this.layout = "stacked";
    this.range = "all";
    this.zoomed = null;
    this.input = null;
    segmented(byId("allocation-layout"), (value) => this.change({ layout: value }));
    this.pressRange = segmented(byId("allocation-range"), (value) => this.change({ range: value, zoomed: null }));
    new ResizeObserver(() => this.draw()).observe(this.picture);
    this.listen(select);
  }

  change(settings) {
    Object.assign(this, settings);
    this.draw();
  }

  /** input: {segments, devices, waiting (ids of jobs that wait for devices), begin, now, elapsed, selected} */
  show(input) {
    this.input = input;
    this.draw();
  }

  window() {
    const { begin, now } = this.input;
    if (this.zoomed) return this.zoomed;
    const length = this.range === "all" ? Math.max(now - begin, 1) : Number(this.range);
    return this.range === "all" ? [begin, begin + length] : [now - length, now];
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.picture;
    if (!this.input || width < 50 || height < 50) return;
    const { segments, devices, waiting, now, selected } = this.input;
    const [begin, end] = this.window();
    const visible = clip(segments, begin, end, now);
    const byDevice = this.layout === "device";
    const rows = new Map(devices.map((device, row) => [device.name, row]));
    const perPixel = (end - begin) / (width - MARGIN.left - MARGIN.right);
    const stopped = clip(pauses(segments, waiting, now), begin, end, now);
    const paused = lanes(stopped.filter((gap) => gap.end - gap.begin >= perPixel), MOST_LANES, selected);
    const above = MARGIN.top + paused.used * LANE;
    const { boxes, coarse } = byDevice ? placed(visible, 0.4 * perPixel, rows) : stacked(visible, 0.4 * perPixel);
    const top = Math.max(devices.length, 1, ...boxes.map((box) => box.bottom + box.height));
    this.scale = { begin, perPixel };
    const x = (seconds) => MARGIN.left + (seconds - begin) / perPixel;
    const y = (devicesBelow) => height - MARGIN.bottom - (devicesBelow / top) * (height - MARGIN.bottom - above);
    set(this.picture, "viewBox", `0 0 ${width} ${height}`);
    this.drawAxes(begin, end, top, x, y, width, byDevice ? devices : null);
    const room = (box) => (box.paused ? laneRoom(above, box.lane) : [y(box.bottom + box.height), y(box.bottom)]);
    this.drawBoxes([...boxes, ...paused.boxes], x, room);
    this.describe(boxes, coarse, paused, end - begin);
  }

  describe(boxes, coarse, paused, seconds) {
    const { segments, devices, empty } = this.input;
    byId("allocation-empty").hidden = boxes.length + paused.boxes.length > 0;
    text(byId("allocation-empty"), segments.length ? "No job had a device in this stretch of time." : empty);
    const notes = [
      coarse !== null && `Very dense: what lasts less than ${duration(coarse)} is left out. Drag to look closer.`,
      paused.left > 0 && "More jobs are paused than fit: select one to see when.",
    ].filter(Boolean);
    byId("allocation-coarse").hidden = !notes.length;
    text(byId("allocation-coarse"), notes.join(" "));
    byId("allocation-paused").hidden = !paused.used;
    byId("allocation-reset").hidden = !this.zoomed;
    const jobs = plural(new Set(boxes.map((box) => box.job)).size, "job");
    set(this.picture, "aria-label", `${jobs} over ${duration(seconds)} on ${plural(devices.length, "device")}`);
  }

  drawAxes(begin, end, top, x, y, width, devices) {
    const { elapsed } = this.input;
    const zero = elapsed ? this.input.begin : 60 * new Date(begin * 1000).getTimezoneOffset();
    const step = axisStep(end - begin, width / 110, true);
    const ticks = [];
    for (let at = Math.ceil((begin - zero) / step) * step + zero; at <= end; at += step) ticks.push(at);
    const label = (at) => (elapsed ? roundDuration(at - zero) : clock(at, step < 60));
    reconcile(
      byId("allocation-time"),
      ticks,
      (at) => at,
      tick,
      (mark, at) => {
        const [line, words] = mark.children;
        lineAt(line, x(at), y(0), x(at), y(top));
        put(words, Math.min(x(at), width - 18), y(0) + 16, "middle");
        text(words, label(at));
      },
    );
    const marks = devices ? deviceMarks(devices, y) : countMarks(top);
    reconcile(
      byId("allocation-count"),
      marks,
      (mark) => `${mark.at}:${mark.label}`,
      tick,
      (element, mark) => {
        const [line, words] = element.children;
        lineAt(line, MARGIN.left, y(mark.at), width - MARGIN.right, y(mark.at));
        put(words, MARGIN.left - 6, y(mark.middle ?? mark.at) + 3.5, "end");
        text(words, mark.label);
      },
    );
  }

  /** *room* gives the upper and the lower edge of a box. */
  drawBoxes(boxes, x, room) {
    const key = (box) => `${box.job} ${box.begin} ${box.bottom ?? `lane ${box.lane}`} ${box.height ?? ""}`;
    reconcile(byId("allocation-boxes"), boxes, key, create, (group, box) => {
      group.box = box;
      const [left, right, [above, below]] = [x(box.begin), x(box.end), room(box)];
      const [width, height] = [Math.max(0.6, right - left - 0.5), Math.max(0.6, below - above - 0.5)];
      set(
        group,
        "class",
        ["box", colourOf(box.job), box.mixed && "mixed", box.paused && "paused", box.job === this.input.selected && "selected"]
          .filter(Boolean)
          .join(" "),
      );
      set(group, "data-job", box.job);
      for (const rectangle of group.querySelectorAll("rect")) {
        set(rectangle, "x", left.toFixed(1));
        set(rectangle, "y", above.toFixed(1));
        set(rectangle, "width", width.toFixed(1));
        set(rectangle, "height", height.toFixed(1));
      }
      const words = group.lastChild;
      put(words, left + width / 2, above + height / 2 + 4, "middle");
      text(words, height < 12 ? "" : fitted(box, width - 6));
    });
  }

  listen(select) {
    const picture = this.picture;
    let from = null;
    let dragged = false; // the click at the end of a drag selects nothing
    const brush = byId("allocation-brush");
    const inside = (event) => event.clientX - picture.getBoundingClientRect().left;
    picture.addEventListener("pointerdown", (event) => {
      dragged = false;
      if (event.button === 0 && event.pointerType === "mouse") from = inside(event);
    });
    picture.addEventListener("pointermove", (event) => {
      this.point(event.target.closest?.(".box")?.box, event);
      if (from === null) return;
      const to = inside(event);
      set(brush, "x", Math.min(from, to));
      set(brush, "width", Math.abs(to - from));
    });
    picture.addEventListener("pointerleave", () => this.point(null));
    window.addEventListener("pointerup", (event) => {
      if (from === null) return;
      const [left, right] = [from, inside(event)].sort((one, other) => one - other);
      from = null;
      set(brush, "width", 0);
      const at = (pixel) => this.scale.begin + (pixel - MARGIN.left) * this.scale.perPixel;
      if (right - left <= 6) return;
      dragged = true;
      this.point(null);
      this.change({ zoomed: [at(Math.max(left, MARGIN.left)), at(right)] });
    });
    picture.addEventListener("click", (event) => {
      const box = event.target.closest(".box")?.box;
      if (box && !dragged) select(box.job);
    });
    const reset = () => this.change({ zoomed: null });
    picture.addEventListener("dblclick", reset);
    byId("allocation-reset").addEventListener("click", reset);
  }

  point(box, event) {
    this.tooltip.hidden = !box;
    if (!box) return;
    const { elapsed, begin, segments, waiting, now } = this.input;
    const all = box.paused ? pauses(segments, waiting, now) : segments;
    const whole =
      all.find((segment) => segment.job === box.job && segment.begin <= box.begin && (segment.end ?? now) > box.begin) ?? box;
    const at = (seconds) => (elapsed ? duration(seconds - begin) : clock(seconds));
    const [name, devices, time] = this.tooltip.children;
    text(name, box.name);
    text(devices, box.paused ? "paused: it has no device" : typeCounts(whole.types));
    text(
      time,
      `${at(whole.begin)} – ${whole.end == null ? "now" : at(whole.end)}, ${duration((whole.end ?? now) - whole.begin)}`,
    );
    const frame = this.picture.parentElement.getBoundingClientRect();
    const left = Math.min(event.clientX - frame.left + 14, frame.width - this.tooltip.offsetWidth - 4);
    this.tooltip.style.left = `${Math.max(4, left)}px`;
    this.tooltip.style.top = `${event.clientY - frame.top + 16}px`;
  }
}

function create() {
  return svg("g", {}, svg("rect", { rx: 2 }), svg("rect", { rx: 2, class: "hatch", fill: "url(#hatch)" }), svg("text"));
}

function tick() {
  return svg("g", {}, svg("line"), svg("text"));
}

function lineAt(line, x1, y1, x2, y2) {
  for (const [name, value] of Object.entries({ x1, y1, x2, y2 })) set(line, name, value.toFixed(1));
}

function put(words, x, y, anchor) {
  set(words, "x", x.toFixed(1));
  set(words, "y", y.toFixed(1));
  set(words, "text-anchor", anchor);
}

/** The upper and the lower edge of a lane for paused jobs; the devices begin at *above*. */
function laneRoom(above, lane) {
  return [above - (lane + 1) * LANE, above - lane * LANE - 2];
}

function fitted(box, width) {
  if (width < LETTER) return "";
  const letters = Math.floor(width / LETTER);
  const words = box.paused ? `${box.name} paused` : box.name;
  if (words.length <= letters) return words;
  if (letters >= 5) return `${words.slice(0, letters - 1)}…`;
  return box.job.length <= letters ? box.job : "";
}

function countMarks(top) {
  const step = Math.max(1, axisStep(top, 6, false));
  const marks = [];
  for (let at = 0; at <= top; at += step) marks.push({ at, label: String(at) });
  return marks;
}

/** A line where the type or the machine changes, named in the middle; single devices if there is room. */
function deviceMarks(devices, y) {
  const roomy = Math.abs(y(1) - y(0)) >= 11;
  const short = (name) => (name.length <= 7 ? name : `…${name.slice(-6)}`);
  const marks = [];
  devices.forEach((device, row) => {
    const changes = row === 0 || devices[row - 1].type !== device.type || devices[row - 1].machine !== device.machine;
    if (roomy) marks.push({ at: row, middle: row + 0.5, label: short(device.name) });
    else if (changes) marks.push({ at: row, middle: row + 0.8, label: device.type.slice(0, 5) });
  });
  return marks;
}
