// Requests to the manager, and the stream with its reconnecting.

const SESSION = "vf-session";
const firstKey = takeKey();

/** The sign-in link leaves a key behind the #. It is kept where only pages of this very server can read it. */
function takeKey() {
  const session = new URLSearchParams(location.hash.slice(1)).get("session");
  if (session) window.history.replaceState(null, "", location.pathname);
  try {
    if (session) localStorage.setItem(SESSION, session);
  } catch {
    // No storage: it is good until the page is loaded anew.
  }
  return session;
}

/** With what a form of another page can't send; the cookie alone it can. */
function signed(headers) {
  let key = firstKey;
  try {
    key = localStorage.getItem(SESSION) ?? firstKey; // another tab may have signed in since
  } catch {
    // No storage.
  }
  return key ? { ...headers, "X-VF-Session": key } : headers;
}

export async function get(path) {
  return answer(await fetch(`api/${path}`, { headers: signed({ Accept: "application/json" }) }));
}

/** All that a job has printed. */
export async function wholeLog(id) {
  const parts = [];
  for (let offset = 0; ; ) {
    const { text, offset: next } = await get(`jobs/${encodeURIComponent(id)}/logs?offset=${offset}&tail=false`);
    if (!text) return parts.join("");
    parts.push(text);
    offset = next;
  }
}

export async function post(path, body = {}) {
  return answer(
    await fetch(`api/${path}`, {
      method: "POST",
      headers: signed({ "Content-Type": "application/json" }),
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
  // FastAPI's list of problems with the request's body.
  if (Array.isArray(detail))
    return detail.map((problem) => `${(problem.loc ?? []).slice(1).join(".")}: ${problem.msg}`).join("; ");
  if (response.status === 401 || response.status === 403)
    return "Not signed in: open the address that `vf dashboard` prints.";
  return `The server answered ${response.status} ${response.statusText}`.trim();
}

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 8000;

/** Listens for ever. A lost stream is opened again, later each time; `retry` does not wait. */
export class Stream {
  constructor(onState, onOpen, onLost) {
    Object.assign(this, { onState, onOpen, onLost, wait: FIRST_WAIT_MS, timer: null, control: null });
    this.open();
  }

  async open() {
    clearTimeout(this.timer);
    this.control?.abort();
    const control = (this.control = new AbortController());
    try {
      await this.listen(control.signal);
    } catch {
      // Lost is lost.
    }
    if (control.signal.aborted) return;
    this.onLost();
    this.timer = setTimeout(() => this.open(), this.wait);
    this.wait = Math.min(2 * this.wait, LONGEST_WAIT_MS);
  }

  /** Server-sent events. An EventSource would be shorter, but can send no header. */
  async listen(signal) {
    const response = await fetch("api/stream", { headers: signed({ Accept: "text/event-stream" }), signal });
    if (!response.ok) return;
    this.wait = FIRST_WAIT_MS;
    this.onOpen();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done || signal.aborted) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) this.handle(event);
    }
  }

  handle(event) {
    const data = event.match(/^event: state\ndata: (.*)$/m);
    try {
      if (data) this.onState(JSON.parse(data[1]));
    } catch (error) {
      reportError(error); // ours, not the connection's
    }
  }

  retry() {
    this.wait = FIRST_WAIT_MS;
    this.open();
  }
}
