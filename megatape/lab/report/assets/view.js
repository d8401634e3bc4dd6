"use strict";
// The data of the page, the reader's choices, and helpers that make elements.

const DATA = JSON.parse(document.getElementById("data").textContent);
const STORE = `megatape ${location.pathname}`;

// The reader's choices, which survive a reload in the same tab.
const VIEW = { axis: "step", smoothing: 0.6, log: true, hidden: [], zooms: {}, folds: {}, live: true };

try {
  Object.assign(VIEW, JSON.parse(sessionStorage.getItem(STORE)));
} catch {
  // A browser may store nothing for local files.
}

function remember(changes) {
  Object.assign(VIEW, changes);
  try {
    sessionStorage.setItem(STORE, JSON.stringify(VIEW));
  } catch {
    // The choices then last until the page is closed.
  }
}

// Set the attributes and the text of a new element, and append it to its parent, if it has one.
function finish(made, attributes, parent, text) {
  for (const [name, value] of Object.entries(attributes)) {
    made.setAttribute(name, value);
  }
  if (text !== undefined) {
    made.textContent = text;
  }
  if (parent) {
    parent.append(made);
  }
  return made;
}

// Make an element of HTML.
function element(name, attributes, parent, text) {
  return finish(document.createElement(name), attributes, parent, text);
}

// Make an element of SVG.
function shape(name, attributes, parent, text) {
  return finish(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, parent, text);
}
