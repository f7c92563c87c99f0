// Who runs which cell of a model in stages: stages down, virtual nodes across, a colour for each device.

import { byId, el, reconcile, set, text } from "./dom.js";
import { plural, ranges } from "./format.js";

const DEVICE_COLOURS = 16; // of style.css; beyond them, names tell devices apart

export class Cells {
  constructor() {
    this.clear();
  }

  /** Another job: its devices get their own colours. */
  clear() {
    this.colours = new Map();
    this.show([], []);
  }

  /** *cells* has a row of devices for each stage; *shadows* those that hold it besides. */
  show(cells, shadows) {
    byId("cells-view").hidden = cells.length === 0;
    const nodes = cells[0]?.length ?? 0;
    text(byId("cells-tally"), `${plural(cells.length, "stage")}, ${plural(nodes, "virtual node")}`);
    set(byId("cells-across"), "colspan", nodes);
    const rows = cells.map((owners, stage) => ({ stage, runs: inRuns(owners), also: shadows[stage] ?? [] }));
    reconcile(
      byId("cells"),
      rows,
      (row) => row.stage,
      (row) => el("tr", {}, el("th", { scope: "row", class: "number" }, String(row.stage))),
      (element, row) => this.draw(element, row),
    );
  }

  draw(element, { stage, runs, also }) {
    const cells = runs.map(({ device, first, last }) => {
      const nodes = ranges(Array.from({ length: last - first + 1 }, (_, place) => first + place));
      const title = `stage ${stage}, node ${nodes}: device ${device}`;
      return el("td", { class: this.colour(device), colspan: last - first + 1, title, "data-device": device }, device);
    });
    const holders = el("td", { class: "muted" }, also.length ? `also on ${also.join(", ")}` : "");
    element.replaceChildren(element.firstChild, ...cells, holders);
  }

  colour(device) {
    if (!this.colours.has(device)) this.colours.set(device, this.colours.size % DEVICE_COLOURS);
    return `c${this.colours.get(device)}`;
  }
}

/** Neighbours on the same device are drawn as one. */
function inRuns(owners) {
  const runs = [];
  for (const [node, device] of owners.entries()) {
    const last = runs.at(-1);
    if (last && last.device === device) last.last = node;
    else runs.push({ device, first: node, last: node });
  }
  return runs;
}
