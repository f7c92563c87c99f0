// What can be done: each button asks what it needs, tells the manager, and shows what it answers.

import { post } from "./api.js";
import { ask, byId, confirmed, text, toast } from "./dom.js";
import { splitArguments } from "./format.js";

async function tell(path, body, done) {
  try {
    const answer = await post(path, body);
    toast(typeof done === "function" ? done(answer) : done, "note");
    return answer;
  } catch (error) {
    toast(error instanceof TypeError ? "The server cannot be reached." : error.message);
    return null;
  }
}

const pathOf = (job, verb) => `jobs/${encodeURIComponent(job.id)}/${verb}`;

function submission(given) {
  const number = (value) => (value === "" ? undefined : Number(value));
  return {
    script: given.script.trim(),
    arguments: splitArguments(given.arguments),
    name: given.name.trim() || undefined,
    priority: number(given.priority),
    demand: number(given.demand),
    min: number(given.min),
  };
}

export const actions = {
  async priority(job) {
    const given = await ask(byId("priority-dialog"), (form) => {
      text(form.querySelector("h2"), `Priority of ${job.name}`);
      form.priority.value = job.priority;
    });
    if (given)
      await tell(
        pathOf(job, "priority"),
        { priority: Number(given.priority) },
        `Priority of ${job.name}: ${given.priority}`,
      );
  },

  async resize(job, mode) {
    const given = await ask(byId("resize-dialog"), (form) => {
      text(form.querySelector("h2"), `Devices of ${job.name}`);
      text(
        form.querySelector(".hint"),
        job.virtual_nodes
          ? `At most ${job.virtual_nodes}, a virtual node on each. The result is the same to the bit.`
          : "",
      );
      form.devices.value = job.devices.length || job.demand;
      form.devices.max = job.virtual_nodes ?? "";
      form.querySelector(".choice").hidden = mode === "job";
      form.auto.onchange = () => (form.devices.disabled = form.auto.checked);
      form.devices.disabled = false;
    });
    if (!given) return;
    const devices = given.auto ? "auto" : Number(given.devices);
    await tell(
      pathOf(job, "resize"),
      { devices },
      given.auto ? `${job.name}: the policy decides again` : `${job.name}: going to ${devices} devices`,
    );
  },

  async pause(job) {
    await tell(pathOf(job, "pause"), {}, `${job.name} pauses and gives its devices back`);
  },

  async resume(job) {
    await tell(pathOf(job, "resume"), {}, `${job.name} is in the queue again`);
  },

  async cancel(job, mode) {
    const verb = mode === "job" ? "Stop" : "Cancel";
    const sure = await confirmed(
      `${verb} ${job.name}?`,
      "The job ends now. Checkpoints that it has saved are kept.",
      `${verb} the job`,
    );
    if (sure) await tell(pathOf(job, "cancel"), {}, `${job.name} is being ${mode === "job" ? "stopped" : "cancelled"}`);
  },

  /** What the manager refuses is asked again, with what was typed. */
  async submit() {
    let answer = null;
    for (let kept = false; answer === null; kept = true) {
      const given = await ask(byId("submit-dialog"), undefined, kept);
      if (!given) return null;
      answer = await tell("jobs", submission(given), (made) => `Submitted as ${made.id}`);
    }
    return answer;
  },

  async drain(device) {
    const sure = await confirmed(
      `Drain device ${device}?`,
      "A job on it goes on with its other devices, or waits if it has none.",
      "Drain",
      false,
    );
    if (sure) await tell(`devices/${encodeURIComponent(device)}/drain`, {}, `Device ${device} is being drained`);
  },

  async return(device) {
    await tell(`devices/${encodeURIComponent(device)}/return`, {}, `Device ${device} is back`);
  },
};
