// The jobs: those that run, the queue, and those that have ended.

import { byId, el, reconcile, set, text } from "./dom.js";
import { count, duration, rate, significant } from "./format.js";
import { colourOf } from "./colours.js";

export const ENDED = ["DONE", "FAILED", "CANCELLED"];
export const WAITING = ["QUEUED", "PAUSED"];
const PAGE = 100;

const GROUPS = [
  { id: "running", title: "Running", of: (job) => !ENDED.includes(job.state) && !WAITING.includes(job.state) },
  { id: "queue", title: "Queue", of: (job) => WAITING.includes(job.state) },
  { id: "ended", title: "Ended", of: (job) => ENDED.includes(job.state) },
];

const COLUMNS = [
  { id: "job", title: "Job" },
  { id: "state", title: "State" },
  { id: "priority", title: "Priority", number: true },
  { id: "devices", title: "Devices", number: true },
  { id: "progress", title: "Steps", number: true, only: "live" },
  { id: "loss", title: "Loss", number: true, only: "live" },
  { id: "speed", title: "Ex/s", number: true, only: "live", hint: "Examples a second" },
  { id: "waited", title: "Waited", number: true },
  { id: "ran", title: "Ran", number: true },
  { id: "left", title: "Left", number: true, only: "live", hint: "Time left, at the present speed" },
  { id: "jct", title: "JCT", number: true, only: "report", hint: "From its arrival to its end" },
  { id: "resizes", title: "Resizes", number: true, only: "report" },
];

/** What a column sorts by. */
const VALUES = {
  job: (job) => job.name.toLowerCase(),
  state: (job) => job.state,
  priority: (job) => job.priority,
  devices: (job, report) => (report ? job.demand : job.devices.length),
  progress: (job) => (job.steps ? job.step / job.steps : job.step),
  loss: (job) => job.loss,
  speed: (job) => job.examples_per_second,
  waited: (job) => job.queued_seconds,
  ran: (job) => job.run_seconds,
  left: (job) => job.eta_seconds,
  jct: (job) => (job.ended == null ? null : job.ended - job.submitted),
  resizes: (job) => job.resizes,
};

/** Counters go on between two messages of the server. */
export function ticking(job, since) {
  const waits = job.state === "QUEUED";
  const runs = ["RUNNING", "RESIZING", "STARTING"].includes(job.state);
  return {
    waited: job.queued_seconds + (waits ? since : 0),
    ran: job.run_seconds + (runs ? since : 0),
    left: job.eta_seconds == null || !runs ? null : Math.max(0, job.eta_seconds - since),
  };
}

export function order(jobs, byArrival = false) {
  if (byArrival) return [...jobs].sort((one, other) => one.submitted - other.submitted);
  const place = (job) => GROUPS.findIndex((group) => group.of(job));
  const held = (job) => (job.state === "PAUSED" ? 1 : 0);
  const late = (job) => (ENDED.includes(job.state) ? -(job.ended ?? 0) : 0);
  return [...jobs].sort(
    (one, other) =>
      place(one) - place(other) ||
      late(one) - late(other) ||
      held(one) - held(other) ||
      other.priority - one.priority ||
      (one.submitted ?? 0) - (other.submitted ?? 0),
  );
}

/** Sorted by a column; a job without a value comes last either way. */
function sortedBy(jobs, column, down, report) {
  const value = (job) => VALUES[column](job, report);
  const missing = (job) => (value(job) == null ? 1 : 0);
  const compare = (one, other) => (one < other ? -1 : one > other ? 1 : 0);
  return [...jobs].sort(
    (one, other) =>
      missing(one) - missing(other) || (down ? -1 : 1) * (missing(one) ? 0 : compare(value(one), value(other))),
  );
}

/** Whether all words of the search are in a job's name, id, owner, sweep, script, state or reason. */
export function matches(job, search) {
  const all = [job.name, job.id, job.owner, job.sweep, job.script, job.state, job.reason].filter(Boolean).join(" ").toLowerCase();
  return search
    .toLowerCase()
    .split(/\s+/)
    .every((word) => all.includes(word));
}

export class Jobs {
  constructor(select) {
    this.select = select;
    this.shown = PAGE;
    this.sort = null; // {column, down}; null: the order in which the manager serves them
    this.search = "";
    this.group = "all";
    const head = byId("jobs-head");
    for (const column of COLUMNS) {
      const button = el("button", { type: "button", class: "sort" }, column.title);
      button.addEventListener("click", () => this.change({ sort: this.nextSort(column) }));
      head.append(cell("th", column, { scope: "col", title: column.hint, "data-column": column.id }, button));
    }
    byId("jobs-more").addEventListener("click", () => this.change({ shown: this.shown + 10 * PAGE }));
    byId("jobs-search").addEventListener("input", (event) => this.change({ search: event.target.value.trim() }));
    byId("jobs-filter").addEventListener("change", (event) => this.change({ group: event.target.value }));
  }

  change(settings) {
    Object.assign(this, settings);
    if (this.last) this.show(this.last);
  }

  /** A click sorts, the next one reverses the order, a third returns to the order of the queue. */
  nextSort(column) {
    if (this.sort?.column !== column.id) return { column: column.id, down: Boolean(column.number) };
    return this.sort.down === Boolean(column.number) ? { column: column.id, down: !this.sort.down } : null;
  }

  chosen(jobs, report) {
    const matching = jobs.filter((job) => !this.search || matches(job, this.search));
    const group = GROUPS.find(({ id }) => id === this.group);
    const members = group ? matching.filter(group.of) : matching;
    return this.sort ? sortedBy(members, this.sort.column, this.sort.down, report) : order(members, report);
  }

  /** input: {jobs, since, selected, report} */
  show(input) {
    this.last = input;
    const { jobs, report } = input;
    text(byId("jobs-head").querySelector(".at-devices button"), report ? "Demand" : "Devices");
    for (const heading of byId("jobs-head").children) {
      const sorts = this.sort?.column === heading.dataset.column;
      set(heading, "aria-sort", sorts ? (this.sort.down ? "descending" : "ascending") : null);
    }
    const sorted = this.chosen(jobs, report);
    byId("jobs-none").hidden = jobs.length === 0 || sorted.length > 0;
    const visible = sorted.slice(0, this.shown);
    byId("jobs-empty").hidden = jobs.length > 0;
    byId("jobs-table").hidden = jobs.length === 0;
    const more = byId("jobs-more");
    more.hidden = sorted.length <= this.shown;
    text(more, `Show more (${count(sorted.length - visible.length)} left out)`);
    for (const group of GROUPS) {
      const body = byId(`jobs-${group.id}`);
      const members = visible.filter(group.of);
      const all = sorted.filter(group.of).length;
      body.hidden = all === 0;
      text(body.querySelector(".tally"), count(all));
      const holder = body.querySelector("th").parentElement;
      this.rows(body, holder, members, input);
    }
  }

  rows(body, heading, members, input) {
    const items = [{ id: "", heading }, ...members];
    const create = (item) => item.heading ?? this.row(item);
    reconcile(
      body,
      items,
      (item) => item.id,
      create,
      (row, job) => {
        if (!job.heading) this.update(row, job, input);
      },
    );
  }

  row(job) {
    const row = el("tr", { "data-job": job.id });
    for (const column of COLUMNS) {
      const label = { "data-label": column.title };
      if (column.id === "job") {
        const name = el("button", { type: "button", class: "name" }, el("i", { class: "swatch" }), el("span"));
        row.append(cell("th", column, { scope: "row" }, name, el("small")));
      } else if (column.id === "state") {
        row.append(cell("td", column, label, el("span", { class: "pill" })));
      } else if (column.id === "devices" || column.id === "progress") {
        const bar = el("progress", { max: 1, value: 0, "aria-hidden": "true" });
        row.append(cell("td", column, label, el("span"), bar));
      } else row.append(cell("td", column, label));
    }
    row.addEventListener("click", () => this.select(job.id, true));
    return row;
  }

  update(row, job, { since, selected, report }) {
    const at = Object.fromEntries(COLUMNS.map((column, index) => [column.id, row.children[index]]));
    const { waited, ran, left } = ticking(job, since);
    set(row, "aria-current", job.id === selected ? "true" : null);
    set(at.job.querySelector("i"), "class", `swatch ${colourOf(job.id)}`);
    text(at.job.querySelector("span"), job.name || job.id);
    set(at.job.firstChild, "title", job.name);
    const late = job.late && !ENDED.includes(job.state) ? `deadline ${job.deadline}` : "";
    const reason = [late, job.reason].filter(Boolean).join("; ");
    text(at.job.lastChild, reason);
    set(at.job.lastChild, "title", reason);
    set(at.job.firstChild, "aria-pressed", job.id === selected ? "true" : "false");
    pill(at.state.firstChild, job.state);
    text(at.priority, significant(job.priority, 2).replace(/\.0$/, ""));
    text(
      at.devices.firstChild,
      report || ENDED.includes(job.state) ? count(job.demand) : `${job.devices.length} / ${job.demand}`,
    );
    set(at.devices.lastChild, "value", Math.min(1, job.devices.length / Math.max(1, job.demand)));
    text(at.progress.firstChild, job.steps ? `${count(job.step)} / ${count(job.steps)}` : count(job.step));
    set(at.progress.lastChild, "value", job.steps ? Math.min(1, job.step / job.steps) : 0);
    text(at.loss, significant(job.loss, 5));
    text(at.speed, rate(ENDED.includes(job.state) || WAITING.includes(job.state) ? null : job.examples_per_second));
    text(at.waited, duration(waited));
    text(at.ran, duration(ran));
    text(at.left, duration(left));
    text(at.jct, job.ended == null ? "–" : duration(job.ended - job.submitted));
    text(at.resizes, count(job.resizes));
  }
}

export function pill(element, state) {
  set(element, "class", `pill ${state.toLowerCase()}`);
  text(element, state.toLowerCase());
}

function cell(tag, column, attributes, ...children) {
  const classes = [`at-${column.id}`, column.number && "number", column.only && `only-${column.only}`];
  return el(tag, { class: classes.filter(Boolean).join(" "), ...attributes }, ...children);
}
