// One job: what it is doing, its curves, its events with their pauses, its logs, and what can be done to it.

import { get, wholeLog } from "./api.js";
import { byId, el, reconcile, segmented, set, text, toast } from "./dom.js";
import {
  clock,
  count,
  duration,
  milliseconds,
  moment,
  NOTHING,
  plural,
  rate,
  significant,
  typeCounts,
} from "./format.js";
import { Cells } from "./cells.js";
import { colourOf } from "./colours.js";
import { Curves } from "./curves.js";
import { ENDED, pill, ticking } from "./jobs.js";

const SERIES_EVERY_MS = 1500;
const LOGS_EVERY_MS = 1500;
const WIDE = ["Devices", "Step", "Deadline", "Sentinel"];
const COLOUR_CODES = /\x1b\[[0-9;?]*[A-Za-z]/g;
const LONGEST_LOG = 400000; // characters that are kept

export class Detail {
  constructor() {
    this.id = null;
    this.tab = "events";
    this.curves = new Curves();
    this.cells = new Cells();
    this.pressTab = segmented(byId("detail-tabs"), (value) => this.show(value));
    setInterval(() => this.pollLogs(), LOGS_EVERY_MS);
    byId("log-download").addEventListener("click", () => this.download());
    byId("compare-with").addEventListener("change", (event) => this.compare(event.target.value));
  }

  /** Another job, or none: nothing of the last one may stay. */
  choose(id) {
    if (id === this.id) return;
    Object.assign(this, { id, mark: null, more: null, offset: 0, asked: 0, pending: false, other: null });
    this.curves.clear();
    this.cells.clear();
    byId("log").textContent = "";
    reconcile(byId("events"), [], String, null, null);
    byId("events-empty").hidden = false;
    this.pollLogs();
  }

  show(tab) {
    this.tab = tab;
    this.pressTab(tab);
    byId("events-view").hidden = tab !== "events";
    byId("logs-view").hidden = tab !== "logs";
    this.pollLogs();
  }

  /** input: {job, since, mode, mayChange, live, types (of a device name), segments} */
  update({ job, jobs, since, mode, mayChange, live, begin, typeOf, segments }) {
    byId("detail-empty").hidden = job != null;
    byId("detail-body").hidden = job == null;
    if (!job) return;
    set(byId("detail-swatch"), "class", `swatch ${colourOf(job.id)}`);
    text(byId("detail-name"), job.name || job.id);
    text(byId("detail-id"), job.name.includes(job.id) ? "" : job.id);
    pill(byId("detail-state"), job.state);
    text(byId("detail-reason"), job.reason);
    byId("detail-reason").hidden = !job.reason;
    this.facts(job, since, mode, begin, typeOf);
    this.buttons(job, mode, mayChange);
    this.others(job, jobs);
    if (mode === "report") this.history(job, segments, begin);
    if (live) this.refresh(job);
  }

  facts(job, since, mode, begin, typeOf) {
    const { waited, ran, left } = ticking(job, since);
    const types = {};
    for (const device of job.devices) types[typeOf(device)] = (types[typeOf(device)] ?? 0) + 1;
    const report = mode === "report";
    const at = (seconds) => (seconds == null ? NOTHING : report ? duration(seconds - begin) : moment(seconds));
    const limits = `${count(job.min ?? 1)} to ${job.cap == null ? count(job.demand) : count(Math.min(job.cap, job.demand))}`;
    const facts = [
      ["Devices", job.devices.length ? typeCounts(types) : NOTHING, !report],
      ["May have", limits, !report],
      ["Demand", count(job.demand), report],
      ["Deadline", job.by == null ? "" : `${moment(job.by)}: ${job.deadline}`, job.by != null],
      ["Owner", job.owner, Boolean(job.owner)],
      ...Object.entries(job.parameters ?? {}).map(([name, value]) => [`Parameter ${name}`, value, true]),
      ["Priority", count(job.priority), mode !== "job"],
      ["Virtual nodes", count(job.virtual_nodes), true],
      ["Step", job.steps ? `${count(job.step)} / ${count(job.steps)}` : count(job.step), !report],
      ["Loss", significant(job.loss, 5), !report],
      ...Object.entries(job.metrics ?? {}).map(([name, value]) => [`Metric ${name}`, significant(value, 5), !report]),
      ["Examples/s", rate(job.examples_per_second), !report],
      ["Waited", duration(waited), true],
      ["Ran", duration(ran), true],
      ["Left", duration(left), !report],
      ["Resizes", count(job.resizes), true],
      ["Failures", count(job.failures), !report],
      ["Sentinel", (job.corruption ?? []).join(" · "), Boolean(job.corruption?.length)],
      ["Submitted", at(job.submitted), report],
      [job.ended == null ? "Started" : "Ended", at(job.ended ?? job.started), true],
    ];
    reconcile(
      byId("detail-facts"),
      facts.filter(([, , wanted]) => wanted),
      ([name]) => name,
      ([name]) => el("div", { class: WIDE.includes(name) ? "wide" : null }, el("dt", {}, name), el("dd")),
      (fact, [, value]) => text(fact.lastChild, value),
    );
  }

  buttons(job, mode, mayChange) {
    const going = !ENDED.includes(job.state);
    const can = {
      priority: going && mode === "cluster",
      resize: going,
      pause: going && job.state !== "PAUSED" && mode === "cluster",
      resume: job.state === "PAUSED" && mode === "cluster",
      cancel: going,
    };
    for (const [verb, possible] of Object.entries(can)) {
      const button = byId(`do-${verb}`);
      button.disabled = !possible;
      button.hidden =
        mode === "report" ||
        !mayChange ||
        (mode === "job" && !["resize", "cancel"].includes(verb)) ||
        (verb === "resume" && !possible) ||
        (verb === "pause" && can.resume);
    }
    text(byId("do-cancel"), mode === "job" ? "Stop…" : "Cancel…");
  }

  /** Ask for more of a live job: its curves as it steps, its events when something has happened. */
  async refresh(job) {
    const mark = [job.state, job.step, job.resizes, job.failures, job.devices.join(), JSON.stringify(job.mapping)].join("|");
    const now = performance.now();
    if (this.pending || mark === this.mark || now - this.asked < SERIES_EVERY_MS) return;
    const id = job.id;
    Object.assign(this, { pending: true, asked: now });
    try {
      const [series, more] = await Promise.all([
        get(`jobs/${encodeURIComponent(id)}/series`),
        get(`jobs/${encodeURIComponent(id)}`),
      ]);
      if (id !== this.id) return;
      this.mark = mark;
      this.curves.show(series, more.events);
      this.about(more);
      this.cells.show(more.cells ?? [], more.shadows ?? []);
      this.events(more.events ?? []);
    } catch {
      // The banner reports a lost server; a job that is gone disappears with the next state.
    } finally {
      if (id === this.id) this.pending = false;
    }
  }

  /** The jobs to compare this one with: those that have made a step. */
  others(job, jobs) {
    const able = jobs.filter((other) => other.id !== job.id && other.step > 0);
    const none = { id: "", name: "Compare with…" };
    const select = byId("compare-with");
    reconcile(
      select,
      [none, ...able],
      (other) => other.id,
      (other) => el("option", { value: other.id }),
      (option, other) => text(option, other.name),
    );
    select.hidden = able.length === 0;
    if (this.other == null) select.value = "";
  }

  async compare(id) {
    this.other = id || null;
    const own = this.id;
    try {
      const series = id ? await get(`jobs/${encodeURIComponent(id)}/series`) : null;
      if (own === this.id && this.other === (id || null)) this.curves.compare(series);
    } catch (error) {
      toast(error.message);
    }
  }

  /** The log as a file. A plain link would send no session key. */
  async download() {
    const name = byId("detail-name").textContent;
    try {
      const url = URL.createObjectURL(new Blob([await wholeLog(this.id)], { type: "text/plain" }));
      el("a", { href: url, download: `${name.replace(/[^\w.-]+/g, "_")}.log` }).click();
      setTimeout(() => URL.revokeObjectURL(url), 1000);
    } catch (error) {
      toast(error.message);
    }
  }

  about(more) {
    const command = [more.script, ...(more.description?.arguments ?? [])].filter(Boolean).join(" ");
    text(byId("detail-command"), command);
    set(byId("detail-command"), "title", more.folder ? `in ${more.folder}` : null);
    text(byId("detail-failure"), more.failure);
    byId("detail-failure").hidden = !more.failure;
    this.speed(more.speed);
  }

  /** What a step took where the job was, and would take elsewhere. */
  speed(speed) {
    byId("speed").hidden = !speed;
    if (!speed) return;
    const unseen = speed.unseen.length ? `; of ${speed.unseen.join(" and ")} nothing is known` : "";
    text(byId("speed-source"), `from ${speed.source}${unseen}`);
    const rows = [
      ...speed.measured.map((seen) => ({
        where: `${typeCounts(seen.devices)}, ${plural(seen.steps, "step")}`,
        took: significant(seen.step_seconds),
        predicted: significant(seen.predicted_step_seconds),
      })),
      ...speed.predicted.map((other) => ({
        where: typeCounts(other.devices),
        took: "",
        predicted: `${significant(other.step_seconds)} ± ${significant(other.deviation_seconds)}`,
      })),
    ];
    reconcile(
      byId("speed-rows"),
      rows.map((row, index) => ({ ...row, index })),
      (row) => row.index,
      () => el("tr", {}, el("td"), el("td", { class: "number" }), el("td", { class: "number" })),
      (row, { where, took, predicted }) => {
        const [first, second, third] = row.children;
        text(first, where);
        text(second, took);
        text(third, predicted);
      },
    );
  }

  events(events) {
    byId("events-empty").hidden = events.length > 0;
    const longest = Math.max(1, ...events.map((event) => event.total_pause_ms ?? 0));
    const numbered = events.map((event, index) => ({ ...event, index })).reverse();
    reconcile(
      byId("events"),
      numbered,
      (event) => event.index,
      eventRow,
      (row, event) => {
        const [time, step, what, pause] = row.children;
        text(time, clock(event.time));
        text(step, event.step == null ? "" : count(event.step));
        text(what.firstChild, event.text);
        const parts = Object.entries(event.pause_ms ?? {});
        text(what.lastChild, parts.map(([part, ms]) => `${part} ${milliseconds(ms)}`).join("  "));
        text(pause.firstChild, event.pause_ms == null ? "" : milliseconds(event.total_pause_ms));
        pause.lastChild.hidden = event.pause_ms == null;
        set(pause.lastChild, "value", (event.total_pause_ms ?? 0) / longest);
      },
    );
  }

  /** A simulated job has no events; its allocations are its story. */
  history(job, segments, begin) {
    const own = segments.filter((segment) => segment.job === job.id);
    byId("events-empty").hidden = own.length > 0;
    reconcile(
      byId("events"),
      own.map((segment, index) => ({ ...segment, index })),
      (segment) => `${job.id} ${segment.index}`,
      eventRow,
      (row, segment) => {
        const [time, step, what, pause] = row.children;
        text(time, duration(segment.begin - begin));
        text(step, "");
        text(what.firstChild, typeCounts(segment.types));
        text(what.lastChild, segment.devices.length && segment.devices.length <= 16 ? segment.devices.join(" ") : "");
        text(pause.firstChild, duration(segment.end - segment.begin));
        pause.lastChild.hidden = true;
      },
    );
  }

  async pollLogs() {
    if (
      this.id == null ||
      this.tab !== "logs" ||
      document.hidden ||
      this.reading ||
      document.body.dataset.mode === "report"
    )
      return;
    const id = this.id;
    this.reading = true;
    try {
      const { text: added, offset } = await get(`jobs/${encodeURIComponent(id)}/logs?offset=${this.offset}`);
      if (id === this.id && added) this.append(added.replace(COLOUR_CODES, ""), offset);
      byId("log-empty").hidden = byId("log").textContent !== "";
    } catch {
      // As above.
    } finally {
      this.reading = false;
    }
  }

  append(added, offset) {
    const log = byId("log");
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 24;
    this.offset = offset;
    if (log.textContent.length + added.length > LONGEST_LOG)
      log.textContent = (log.textContent + added).slice(-LONGEST_LOG / 2);
    else log.append(added);
    if (atEnd) log.scrollTop = log.scrollHeight;
  }
}

function eventRow() {
  return el(
    "tr",
    {},
    el("td", { class: "number" }),
    el("td", { class: "number" }),
    el("td", {}, el("span"), el("small")),
    el("td", { class: "number" }, el("span"), el("progress", { max: 1, value: 0, "aria-hidden": "true" })),
  );
}
