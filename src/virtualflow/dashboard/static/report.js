// A simulation's report: its policies side by side, one of them shown.

import { byId, el, reconcile, set, text } from "./dom.js";
import { count, duration, significant } from "./format.js";

const SHOWN = {
  average_jct_seconds: ["Average JCT", duration],
  median_jct_seconds: ["Median JCT", duration],
  tail_jct_seconds: ["99th percentile", duration],
  makespan_seconds: ["Makespan", duration],
  median_queueing_seconds: ["Median queueing", duration],
  utilization: ["Utilisation", percent],
  productive: ["Productive", percent],
  restarting: ["Restarting", percent],
  unused: ["Assigned, unused", percent],
  free: ["Free", percent],
  lost: ["Lost", percent],
  resizes: ["Resizes", count],
  fairness: ["Fairness", (value) => significant(value, 3)],
};

/** The embedded data as {name: {state, history, summary}}, whether it has one policy or many. */
export function policiesOf(data) {
  return data.policies ?? { [data.state.cluster.policy ?? "report"]: data };
}

export class Report {
  constructor(policies, choose) {
    const summaries = Object.values(policies).map((policy) => policy.summary ?? {});
    const figures = Object.keys(SHOWN).filter((name) => summaries.some((summary) => summary[name] != null));
    const head = byId("policies-head");
    head.append(el("th", { scope: "col" }, "Policy"));
    for (const figure of figures) head.append(el("th", { scope: "col", class: "number" }, SHOWN[figure][0]));
    reconcile(
      byId("policies-body"),
      Object.entries(policies),
      ([name]) => name,
      ([name, policy]) => {
        const button = el("button", { type: "button", class: "name" }, name);
        const row = el("tr", { "data-policy": name }, el("th", { scope: "row" }, button));
        for (const figure of figures) row.append(el("td", { class: "number" }, shown(policy, figure)));
        row.addEventListener("click", () => choose(name));
        return row;
      },
      () => {},
    );
  }

  press(name, note) {
    for (const row of byId("policies-body").children) {
      set(row, "aria-current", row.dataset.policy === name ? "true" : null);
      set(row.querySelector("button"), "aria-pressed", row.dataset.policy === name ? "true" : "false");
    }
    text(byId("report-note"), note);
    byId("report-note").hidden = !note;
  }
}

/** A figure, and half the width of its 95% interval over seeds if there are several. */
function shown(policy, name) {
  const half = policy.half_widths?.[name];
  const value = SHOWN[name][1](policy.summary?.[name]);
  return half == null ? value : `${value} ± ${SHOWN[name][1](half)}`;
}

function percent(share) {
  return share == null ? "–" : `${(100 * share).toFixed(1)}%`;
}
