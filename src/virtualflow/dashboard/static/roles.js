// What the token may do with which this page has been opened. Only for what to show: the server decides.

export const LOOKER = { name: "", role: "look", owner: "" };

export const mayAdminister = (caller) => caller.role === "administer";

export const maySubmit = (caller) => mayAdminister(caller) || caller.role === "submit";

export const mayChange = (caller, job) =>
  mayAdminister(caller) || (caller.role === "submit" && job != null && job.owner === caller.owner);
