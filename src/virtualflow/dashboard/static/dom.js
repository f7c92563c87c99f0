// Small tools over the DOM. Text goes in by textContent only: job names come from users.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) set(element, name, value);
  element.append(...children);
  return element;
}

/** Set an attribute, and touch nothing when it already has that value. */
export function set(element, name, value) {
  if (value == null || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) {
    element.setAttribute(name, value === true ? "" : value);
  }
}

export function text(element, value) {
  const next = String(value ?? "");
  if (element.textContent !== next) element.textContent = next;
}

/** Make the children of *parent* those of *items*, reusing elements by key, so that focus and scroll stay. */
export function reconcile(parent, items, key, create, update) {
  const known = (parent.known ??= new Map());
  const wanted = new Map();
  let previous = null;
  for (const item of items) {
    const id = String(key(item));
    const element = known.get(id) ?? create(item);
    update(element, item);
    wanted.set(id, element);
    const next = previous ? previous.nextSibling : parent.firstChild;
    if (element !== next) parent.insertBefore(element, next);
    previous = element;
  }
  for (const [id, element] of known) if (!wanted.has(id)) element.remove();
  parent.known = wanted;
}

export function toast(message, tone = "error") {
  const close = el("button", { type: "button", class: "quiet", "aria-label": "Dismiss" }, "×");
  const note = el("div", { class: `toast ${tone}` }, el("span", {}, message), close);
  close.addEventListener("click", () => note.remove());
  byId("toasts").append(note);
  setTimeout(() => note.remove(), tone === "error" ? 12000 : 4000);
}

/** Show a dialog; resolves to its form's data, or to null if it was dismissed. *kept*: with what was typed before. */
export function ask(dialog, prepare = () => {}, kept = false) {
  const form = dialog.querySelector("form");
  if (!kept) form.reset();
  prepare(form);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener(
      "close",
      () => resolve(dialog.returnValue === "ok" ? Object.fromEntries(new FormData(form)) : null),
      { once: true },
    );
  });
}

export async function confirmed(title, consequence, action, dangerous = true) {
  const dialog = byId("confirm");
  text(dialog.querySelector("h2"), title);
  text(dialog.querySelector("p"), consequence);
  const button = dialog.querySelector("button[value=ok]");
  text(button, action);
  button.classList.toggle("danger", dangerous);
  return (await ask(dialog)) !== null;
}

/** One of several buttons is pressed. */
export function segmented(group, chosen) {
  const press = (value) => {
    for (const button of group.querySelectorAll("button")) {
      set(button, "aria-pressed", button.dataset.value === value ? "true" : "false");
    }
  };
  group.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button || button.disabled) return;
    press(button.dataset.value);
    chosen(button.dataset.value);
  });
  return press;
}
