// The manager's door: requests, and the stream with its reconnecting.

export async function get(path) {
  return answer(await fetch(`api/${path}`, { headers: { Accept: "application/json" } }));
}

export async function post(path, body = {}) {
  return answer(
    await fetch(`api/${path}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    }),
  );
}

async function answer(response) {
  const contents = await response.json().catch(() => null);
  if (response.ok) return contents;
  throw new Error(message(contents, response));
}

function message(contents, response) {
  const detail = contents?.detail;
  if (typeof detail === "string") return detail;
  // What FastAPI says of a body that does not fit.
  if (Array.isArray(detail))
    return detail.map((each) => `${(each.loc ?? []).slice(1).join(".")}: ${each.msg}`).join("; ");
  if (response.status === 401 || response.status === 403)
    return "Not signed in: open the address that `vf dashboard` prints.";
  return `The server answered ${response.status} ${response.statusText}`.trim();
}

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 8000;

/** Listens for ever. A lost stream is opened again, later each time; `retry` does not wait. */
export class Stream {
  constructor(onState, onOpen, onLost) {
    Object.assign(this, { onState, onOpen, onLost, wait: FIRST_WAIT_MS, timer: null, source: null });
    this.open();
  }

  open() {
    clearTimeout(this.timer);
    this.source?.close();
    const source = (this.source = new EventSource("api/stream"));
    source.addEventListener("open", () => {
      this.wait = FIRST_WAIT_MS;
      this.onOpen();
    });
    source.addEventListener("state", (event) => this.onState(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      source.close();
      this.onLost();
      this.timer = setTimeout(() => this.open(), this.wait);
      this.wait = Math.min(2 * this.wait, LONGEST_WAIT_MS);
    });
  }

  retry() {
    this.wait = FIRST_WAIT_MS;
    this.open();
  }
}
