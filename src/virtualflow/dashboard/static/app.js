// The page: one state, shown by its parts, live from a manager or a job, or embedded in a report.

import { get, Stream } from "./api.js";
import { actions } from "./actions.js";
import { Allocation } from "./allocation.js";
import { giveColours } from "./colours.js";
import { Detail } from "./detail.js";
import { Devices } from "./devices.js";
import { byId, set, text } from "./dom.js";
import { LOOKER, mayAdminister, mayChange, maySubmit } from "./roles.js";
import { count, duration } from "./format.js";
import { ENDED, Jobs, order, WAITING } from "./jobs.js";
import { policiesOf, Report } from "./report.js";

const embedded = byId("vf-data") ? JSON.parse(byId("vf-data").textContent) : null;
let state = null;
let segments = [];
let selected = new URLSearchParams(location.hash.slice(1)).get("job");
let aheadSeconds = 0; // of the server's clock before ours
let allocated = ""; // the allocation that the segments show
let caller = LOOKER; // whose token this page has been opened with
let widest = 0; // the longest of a report's policies, so that their charts compare

const allocation = new Allocation((id) => select(id));
const jobs = new Jobs(select);
const devices = new Devices(select, (verb, device) => actions[verb](device));
const detail = new Detail();
const now = () => (embedded ? state.cluster.now : Date.now() / 1000 + aheadSeconds);
const jobOf = (id) => state?.jobs.find((job) => job.id === id);

function take(next) {
  if (!embedded && state && next.cluster.now < state.cluster.now) return; // an answer that the stream has overtaken
  for (const job of next.jobs) {
    job.id = String(job.id);
    job.name ||= job.id;
  }
  for (const device of next.devices) if (device.job != null) device.job = String(device.job);
  state = next;
  aheadSeconds = next.cluster.now - Date.now() / 1000;
  set(document.body, "data-mode", next.mode);
  giveColours(state.jobs, segments);
  if (!jobOf(selected)) selected = order(state.jobs, embedded !== null)[0]?.id ?? null;
  render();
}

function takeHistory(history) {
  segments = history.segments.map((segment) => ({
    ...segment,
    job: String(segment.job),
    name: segment.name || String(segment.job),
  }));
  giveColours(state.jobs, segments);
  render();
}

async function refreshHistory() {
  const mark = state.jobs.map((job) => `${job.id}:${job.devices.join()}`).join(";");
  if (mark === allocated) return;
  const before = allocated;
  allocated = mark;
  try {
    takeHistory(await get("history"));
  } catch {
    allocated = before;
  }
}

/** Which buttons are of use; the server checks each request by itself. */
async function refreshCaller() {
  try {
    caller = await get("caller");
    render();
  } catch {
    // The stream says that the server is away.
  }
}

function select(id, scroll = false) {
  selected = id;
  window.history.replaceState(null, "", `#job=${encodeURIComponent(id)}`);
  render();
  const narrow = matchMedia("(max-width: 1000px)").matches;
  if (scroll && narrow) byId("detail").scrollIntoView({ block: "start" });
}

function render() {
  if (!state) return;
  const { cluster, mode } = state;
  const since = embedded ? 0 : Math.max(0, now() - cluster.now);
  const types = new Map(state.devices.map((device) => [device.name, device.type]));
  const earliest = segments.reduce(
    (least, segment) => Math.min(least, segment.begin),
    embedded ? cluster.started : now(),
  );
  const begin = embedded ? cluster.started : Math.min(earliest, now() - 60);
  head(cluster, mode);
  allocation.show({
    segments,
    devices: state.devices,
    begin,
    now: embedded ? Math.max(widest, cluster.now) : now(),
    elapsed: mode === "report",
    waiting: new Set(state.jobs.filter((job) => WAITING.includes(job.state)).map((job) => job.id)),
    selected,
    empty: mode === "cluster" ? "No job has had a device yet." : "Nothing to show yet.",
  });
  if (mode !== "job") jobs.show({ jobs: state.jobs, since, selected, report: mode === "report" });
  if (mode !== "report") devices.show(state, mayAdminister(caller));
  detail.choose(selected);
  detail.update({
    job: jobOf(selected),
    jobs: state.jobs,
    since,
    mode,
    mayChange: mayChange(caller, jobOf(selected)),
    live: !embedded,
    begin,
    typeOf: (device) => types.get(device) ?? "cpu",
    segments,
  });
}

function head(cluster, mode) {
  const ended = (job) => ENDED.includes(job.state);
  const running = state.jobs.filter((job) => job.devices.length && !ended(job)).length;
  const waiting = state.jobs.filter((job) => job.state === "QUEUED").length;
  text(byId("cluster-name"), cluster.name);
  const facts = mode === "job" ? [cluster.backend] : [cluster.policy, cluster.backend];
  text(byId("cluster-facts"), facts.filter(Boolean).join(" · "));
  const busy = state.devices.filter((device) => device.job != null).length;
  const tallies = {
    "tally-devices": mode === "report" ? count(state.devices.length) : `${busy}/${state.devices.length}`,
    "tally-running": count(mode === "report" ? state.jobs.length : running),
    "tally-queued": count(waiting),
    "tally-up": duration(now() - cluster.started),
  };
  for (const [id, value] of Object.entries(tallies)) text(byId(id), value);
  text(byId("tally-running").nextElementSibling, mode === "report" ? "jobs" : "running");
  text(byId("tally-up").nextElementSibling, mode === "report" ? "simulated" : "up");
  const troubles = cluster.troubles ?? [];
  byId("troubles").hidden = !troubles.length;
  text(byId("troubles").firstElementChild, troubles.join(" "));
  byId("submit").hidden = !maySubmit(caller);
  text(byId("role"), mode === "cluster" && !mayAdminister(caller) ? `${caller.name} may ${caller.role}` : "");
  text(byId("version"), cluster.version ? `VirtualFlow ${cluster.version}` : "");
  const titles = {
    cluster: `${running} running, ${waiting} queued`,
    job: state.jobs[0]?.name ?? "job",
    report: cluster.policy,
  };
  document.title = `${titles[mode]} · VirtualFlow`;
}

function connected(well) {
  byId("banner").hidden = well;
  set(document.body, "data-stream", well ? "live" : "lost");
  text(byId("stream-state"), well ? "live" : "lost");
}

function openLive() {
  const stream = new Stream(
    (next) => {
      connected(true);
      take(next);
      refreshHistory();
    },
    () => {
      connected(true);
      allocated = "";
      refreshCaller();
      get("state").then(
        (next) => {
          take(next);
          refreshHistory();
        },
        () => {},
      );
    },
    () => {
      connected(false);
      // A server that answers may say why there is no stream: a stale sign-in, most of all.
      const silent = state?.mode === "job" ? "If the job has ended, this is its last state." : "";
      get("state").catch((error) => text(byId("lost-why"), error instanceof TypeError ? silent : error.message));
    },
  );
  byId("reconnect").addEventListener("click", () => stream.retry());
  setInterval(() => state && !document.hidden && render(), 1000);
}

function openReport() {
  const policies = policiesOf(embedded);
  widest = Math.max(...Object.values(policies).map((policy) => policy.state.cluster.now));
  const choose = (name) => {
    const { state: next, history } = policies[name];
    segments = [];
    take(next);
    takeHistory(history);
    report.press(name, policies[name].note);
  };
  const report = new Report(policies, choose);
  choose(Object.keys(policies)[0]);
}

function chooseTheme() {
  const saved = {
    get: () => read(() => localStorage.getItem("vf-theme")),
    put: (value) => read(() => localStorage.setItem("vf-theme", value)),
  };
  const dark = () =>
    (document.documentElement.dataset.theme ??
      (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  if (saved.get()) document.documentElement.dataset.theme = saved.get();
  byId("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    saved.put(document.documentElement.dataset.theme);
    detail.curves.redraw();
  });
}

function read(storage) {
  try {
    return storage();
  } catch {
    return null; // a browser that stores nothing
  }
}

for (const verb of ["priority", "resize", "pause", "resume", "cancel"]) {
  byId(`do-${verb}`).addEventListener("click", () => jobOf(selected) && actions[verb](jobOf(selected), state.mode));
}
byId("submit").addEventListener("click", async () => {
  const answer = await actions.submit();
  if (!answer) return;
  const next = await get("state").catch(() => null);
  if (!next) return; // the stream says that the server is away
  take(next);
  if (jobOf(String(answer.id))) select(String(answer.id));
});
for (const button of document.querySelectorAll("dialog button[data-close]")) {
  button.addEventListener("click", () => button.closest("dialog").close(""));
}
chooseTheme();
embedded ? openReport() : openLive();
