// A stand-in for a browser: as much of a document as the page's scripts touch when they are loaded or make elements.
// Importing this file first makes them loadable in node. It draws nothing.

class Leaf {
  constructor(text) {
    this.text = String(text);
  }
  get textContent() {
    return this.text;
  }
}

class Element {
  constructor(tag) {
    Object.assign(this, { tag, children: [], attributes: {}, listeners: {}, dataset: {}, scrollTop: 0, clientHeight: 0 });
    this.classes = new Set();
    this.classList = { add: (name) => this.classes.add(name), contains: (name) => this.classes.has(name) };
    this.styles = {};
    this.style = { setProperty: (name, value) => (this.styles[name] = value) };
  }
  append(...children) {
    this.children.push(...children.map((c) => (c instanceof Element ? c : new Leaf(c))));
  }
  replaceChildren(...children) {
    this.children = [];
    this.append(...children);
  }
  setAttribute(name, value) {
    this.attributes[name] = value;
  }
  hasAttribute(name) {
    return name in this.attributes;
  }
  getAttribute(name) {
    return this.attributes[name] ?? null;
  }
  addEventListener(name, run) {
    (this.listeners[name] ??= []).push(run);
  }
  fire(name, event = {}) {
    (this.listeners[name] ?? []).forEach((run) => run({ target: this, preventDefault() {}, ...event }));
  }
  get textContent() {
    return this.children.map((c) => c.textContent).join("");
  }
  set textContent(text) {
    this.replaceChildren(text);
  }
  /** Every element below this one that has a class, in order. */
  all(name) {
    return this.children.flatMap((c) =>
      c instanceof Element ? [...(c.classes.has(name) ? [c] : []), ...c.all(name)] : [],
    );
  }
}

const byId = new Map();
const listening = {};

globalThis.Node = Element;
globalThis.document = {
  documentElement: new Element("html"),
  body: new Element("body"),
  createElement: (tag) => new Element(tag),
  createElementNS: (_, tag) => new Element(tag),
  getElementById: (id) => byId.get(id) ?? null,
};
globalThis.location = { hash: "", protocol: "file:" };
const go = (_, __, address) => (globalThis.location.hash = address);
globalThis.history = { pushState: go, replaceState: go };
globalThis.matchMedia = () => ({ matches: false, addEventListener() {} });
globalThis.ResizeObserver = globalThis.IntersectionObserver = class {
  observe() {}
};
globalThis.addEventListener = (name, run) => (listening[name] ??= []).push(run);

/** What the browser does when the reader goes back. */
export function comeTo(hash) {
  globalThis.location.hash = hash;
  (listening.popstate ?? []).forEach((run) => run());
}

/** The report that data.js will read: call it before data.js is imported. */
export function withReport(report) {
  const place = new Element("script");
  place.textContent = JSON.stringify({ models: [], sources: [], metrics: {}, columns: [], audits: [], ...report });
  byId.set("report-data", place);
}
