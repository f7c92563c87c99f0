// Which virtual node runs on which device right now, and what its worker uses there.

import { byId, el, reconcile, set, text } from "./dom.js";
import { bytes, moment, plural, ranges } from "./format.js";
import { colourOf } from "./colours.js";

const MOST_CHIPS = 16;

export class Devices {
  constructor(select, act) {
    this.select = select;
    this.act = act;
  }

  show({ devices, jobs, mode }, mayDrain) {
    const named = new Map(jobs.map((job) => [job.id, job]));
    const machines = byMachine(devices);
    const busy = devices.filter((device) => device.job != null).length;
    const lost = devices.filter((device) => device.lost).length;
    text(byId("devices-tally"), `${busy} of ${devices.length} busy${lost ? `, ${lost} out` : ""}`);
    reconcile(
      byId("machines"),
      [...machines],
      ([machine]) => machine,
      machineBox,
      (box, [machine, members]) => {
        const [heading, list] = box.children;
        text(heading, machines.size > 1 ? `Machine ${machine}` : "");
        heading.hidden = machines.size === 1;
        reconcile(
          list,
          members,
          (device) => device.name,
          (device) => this.tile(device),
          (tile, device) => update(tile, device, named.get(device.job), mode === "cluster" && mayDrain),
        );
      },
    );
  }

  tile(device) {
    const name = el("span", { class: "device-name" });
    const type = el("span", { class: "muted" });
    const button = el("button", { type: "button", class: "quiet small" });
    const job = el("button", { type: "button", class: "name" }, el("i", { class: "swatch" }), el("span"));
    const chips = el("span", { class: "chips" });
    const use = el("small", { class: "use" });
    const head = el("div", { class: "device-head" }, name, type, button);
    const tile = el("li", { class: "device" }, head, job, use, chips);
    button.addEventListener("click", () => this.act(button.dataset.verb, device.name));
    job.addEventListener("click", () => job.dataset.job && this.select(job.dataset.job, true));
    return tile;
  }
}

function update(tile, device, job, canDrain) {
  const [head, name, use, chips] = tile.children;
  const [title, type, button] = head.children;
  const nodes = job?.mapping?.[device.name] ?? [];
  set(tile, "class", `device ${device.lost ? "lost" : device.job == null ? "free" : colourOf(device.job)}`);
  text(title, device.name);
  const kind = device.name.startsWith(device.type) ? "" : device.type;
  text(type, [kind, device.memory == null ? "" : bytes(device.memory)].filter(Boolean).join(" · "));
  button.hidden = !canDrain;
  set(button, "data-verb", device.lost ? "return" : "drain");
  text(button, device.lost ? "Return" : "Drain");
  set(button, "aria-label", `${device.lost ? "Return" : "Drain"} device ${device.name}`);
  set(name, "data-job", device.job);
  name.disabled = device.job == null;
  set(name.firstChild, "class", device.job == null ? "swatch none" : `swatch ${colourOf(device.job)}`);
  text(name.lastChild, device.job == null ? (device.lost ? "lost or drained" : device.maintenance ? `out from ${moment(device.maintenance[0])}` : "free") : (job?.name ?? device.job));
  const used = job?.use?.[device.name];
  use.hidden = !used;
  text(use, used ? useWords(used) : "");
  set(use, "title", "Processor cores and memory that the worker uses; on a GPU, also what its tensors occupy there");
  set(chips, "aria-label", nodes.length ? `${plural(nodes.length, "virtual node")}: ${ranges(nodes)}` : null);
  set(chips, "title", nodes.length ? `${plural(nodes.length, "virtual node")}: ${ranges(nodes)}` : null);
  const shown = nodes.length > MOST_CHIPS ? [`${nodes.length} nodes: ${ranges(nodes)}`] : nodes;
  reconcile(
    chips,
    shown,
    (node) => node,
    (node) => el("b", {}, String(node)),
    () => {},
  );
}

/** "98% CPU · 412 MB · GPU 3.0 GB": 100% is one core. */
function useWords(used) {
  const words = [`${Math.round(100 * used.cpu_cores)}% CPU`, bytes(used.memory_bytes)];
  if (used.accelerator_bytes != null) words.push(`GPU ${bytes(used.accelerator_bytes)}`);
  return words.join(" · ");
}

function machineBox() {
  return el("section", { class: "machine" }, el("h3"), el("ul", { class: "device-list" }));
}

function byMachine(devices) {
  const machines = new Map();
  for (const device of devices) machines.set(device.machine, [...(machines.get(device.machine) ?? []), device]);
  return machines;
}
