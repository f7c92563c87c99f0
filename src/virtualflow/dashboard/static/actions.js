// What the buttons do: ask for input, send a request to the manager, show the answer.

import { post } from "./api.js";
import { ask, byId, confirmed, text, toast } from "./dom.js";
import { splitArguments } from "./format.js";

async function request(path, body, done) {
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

function submission(values) {
  const number = (value) => (value === "" ? undefined : Number(value));
  return {
    script: values.script.trim(),
    arguments: splitArguments(values.arguments),
    name: values.name.trim() || undefined,
    priority: number(values.priority),
    demand: number(values.demand),
    min: number(values.min),
  };
}

export const actions = {
  async priority(job) {
    const values = await ask(byId("priority-dialog"), (form) => {
      text(form.querySelector("h2"), `Priority of ${job.name}`);
      form.priority.value = job.priority;
    });
    if (values)
      await request(
        pathOf(job, "priority"),
        { priority: Number(values.priority) },
        `Priority of ${job.name}: ${values.priority}`,
      );
  },

  async resize(job, mode) {
    const values = await ask(byId("resize-dialog"), (form) => {
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
    if (!values) return;
    const devices = values.auto ? "auto" : Number(values.devices);
    await request(
      pathOf(job, "resize"),
      { devices },
      values.auto ? `${job.name}: the policy decides again` : `${job.name}: going to ${devices} devices`,
    );
  },

  async pause(job) {
    await request(pathOf(job, "pause"), {}, `${job.name} pauses and gives its devices back`);
  },

  async resume(job) {
    await request(pathOf(job, "resume"), {}, `${job.name} is in the queue again`);
  },

  async cancel(job, mode) {
    const verb = mode === "job" ? "Stop" : "Cancel";
    const sure = await confirmed(
      `${verb} ${job.name}?`,
      "The job ends now. Checkpoints that it has saved are kept.",
      `${verb} the job`,
    );
    if (sure) await request(pathOf(job, "cancel"), {}, `${job.name} is being ${mode === "job" ? "stopped" : "cancelled"}`);
  },

  /** After a refusal the dialog opens again, with its input. */
  async submit() {
    let answer = null;
    for (let kept = false; answer === null; kept = true) {
      const values = await ask(byId("submit-dialog"), undefined, kept);
      if (!values) return null;
      answer = await request("jobs", submission(values), (job) => `Submitted as ${job.id}`);
    }
    return answer;
  },

  async drain(device) {
    const sure = await confirmed(
      `Drain device ${device}?`,
      "A job on it continues with its other devices, or waits if it has none.",
      "Drain",
      false,
    );
    if (sure) await request(`devices/${encodeURIComponent(device)}/drain`, {}, `Device ${device} is being drained`);
  },

  async return(device) {
    await request(`devices/${encodeURIComponent(device)}/return`, {}, `Device ${device} is back`);
  },
};
