// Fields of the pipeline editor: small elements that read a member of an object and write it back.
//
// An empty field means that the member is not set, so it is removed from the object instead of kept as "".
"use strict";

const OrcFields = (() => {
  // An element with properties, classes and children. Texts are set as text, never as markup.
  function make(tag, properties = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name === "class") element.className = value;
      else if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
      else if (name.includes("-") || name === "role") element.setAttribute(name, value);
      else element[name] = value;
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }

  function set(owner, key, value) {
    if (value === undefined || value === "") delete owner[key];
    else owner[key] = value;
  }

  // A label around a control, with a place for the errors of that member.
  function labelled(title, key, control, hint) {
    const faults = make("span", { class: "orc-error", "data-faults": key });
    const name = make("span", { class: "orc-label" }, title);
    control.dataset.field = key;
    return make("label", { class: "orc-control" }, name, control, hint ? make("small", {}, hint) : null, faults);
  }

  function text(owner, key, title, changed, { hint, rows, holder = key } = {}) {
    const control = make(rows ? "textarea" : "input", {
      value: typeof owner[key] === "string" ? owner[key] : "",
      on: { input: () => { set(owner, key, control.value); changed(); } },
    });
    if (rows) control.rows = rows;
    return labelled(title, holder, control, hint);
  }

  function number(owner, key, title, changed, { hint, holder = key } = {}) {
    const control = make("input", {
      type: "number", step: "any", value: owner[key] ?? "",
      on: { input: () => { set(owner, key, control.value === "" ? undefined : Number(control.value)); changed(); } },
    });
    return labelled(title, holder, control, hint);
  }

  function flag(owner, key, title, changed) {
    const control = make("input", {
      type: "checkbox", checked: owner[key] === true, "data-field": key,
      on: { change: () => { set(owner, key, control.checked || undefined); changed(); } },
    });
    const faults = make("span", { class: "orc-error", "data-faults": key });
    return make("label", { class: "orc-flag" }, control, title, faults);
  }

  // Options are [value, words]. An unknown value is kept, because the server reports its error.
  function choice(owner, key, title, options, changed, { hint, holder = key } = {}) {
    const present = owner[key] ?? "";
    const known = options.some(([value]) => value === present);
    const allOptions = known ? options : [...options, [present, `${present} (unknown)`]];
    const control = make("select", {
      on: { change: () => { set(owner, key, control.value); changed(); } },
    }, ...allOptions.map(([value, words]) => make("option", { value, selected: value === present }, words)));
    return labelled(title, holder, control, hint);
  }

  // JSON as text. Invalid JSON is kept as text: then the check reports the error, and nothing is lost.
  function json(owner, key, title, changed, { hint } = {}) {
    const present = owner[key];
    const control = make("textarea", {
      class: "orc-code", rows: 3, spellcheck: false,
      value: present === undefined ? "" : typeof present === "string" ? present : JSON.stringify(present, null, 2),
      on: {
        input: () => {
          let value = control.value.trim() === "" ? undefined : control.value;
          try { if (value !== undefined) value = JSON.parse(value); } catch { /* kept as text */ }
          set(owner, key, value);
          changed();
        },
      },
    });
    return labelled(title, key, control, hint);
  }

  return { make, set, labelled, text, number, flag, choice, json };
})();
