// Elements, and how a page that is shown becomes the next one: what stays, stays the same element.
//
// Every render builds the small tree that is to be seen; `become` changes the shown one into it. Elements with a
// `data-key` are found again by it, others by their place, so focus, scroll position and a text selection survive.

export function el(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function svg(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

const keyOf = (node) => (node.nodeType === 1 ? node.getAttribute("data-key") : null);
const HANDLERS = ["onclick", "onkeydown"];

function same(shown, next) {
  return shown.nodeType === next.nodeType && shown.nodeName === next.nodeName && keyOf(shown) === keyOf(next);
}

function change(shown, next) {
  if (shown.nodeType !== 1) {
    if (shown.data !== next.data) shown.data = next.data;
    return;
  }
  for (const { name } of [...shown.attributes]) if (!next.hasAttribute(name)) shown.removeAttribute(name);
  for (const { name, value } of next.attributes) if (shown.getAttribute(name) !== value) shown.setAttribute(name, value);
  for (const name of HANDLERS) if (shown[name] !== next[name]) shown[name] = next[name];
  become(shown, [...next.childNodes]);
}

// Make `children` what `parent` shows.
export function become(parent, children) {
  const wanted = new Set(children.map(keyOf));
  const shownByKey = new Map();
  // Those that go are taken out first, so that what stays need not be moved: an element that moves loses the focus.
  for (const shown of [...parent.childNodes]) {
    const key = keyOf(shown);
    if (key === null) continue;
    if (wanted.has(key)) shownByKey.set(key, shown);
    else shown.remove();
  }
  let at = parent.firstChild;
  for (const next of children) {
    const key = keyOf(next);
    const candidate = key === null ? at : shownByKey.get(key);
    if (!candidate || !same(candidate, next)) {
      parent.insertBefore(next, at);
      continue;
    }
    if (candidate === at) at = at.nextSibling;
    else parent.insertBefore(candidate, at);
    change(candidate, next);
  }
  while (at) {
    const following = at.nextSibling;
    at.remove();
    at = following;
  }
}
