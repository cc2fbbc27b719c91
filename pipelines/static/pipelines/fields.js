// Fields of the pipeline editor: small elements that read a member of an object and write it back.
//
// An empty field means that the member is not said, so it is removed from the object instead of kept as "".
"use strict";

const OrcFields = (() => {
  // An element with properties, classes and children. Texts are set as text, never as markup.
  function make(tag, given = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(given)) {
      if (name === "class") made.className = value;
      else if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
      else if (name.includes("-") || name === "role") made.setAttribute(name, value);
      else made[name] = value;
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  function set(owner, key, value) {
    if (value === undefined || value === "") delete owner[key];
    else owner[key] = value;
  }

  // A label around a control, with a place for the faults of that member.
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

  // Options are [value, words]. A value that is not among them is kept, since the server says what is wrong with it.
  function choice(owner, key, title, options, changed, { hint, holder = key } = {}) {
    const present = owner[key] ?? "";
    const known = options.some(([value]) => value === present);
    const shown = known ? options : [...options, [present, `${present} (unknown)`]];
    const control = make("select", {
      on: { change: () => { set(owner, key, control.value); changed(); } },
    }, ...shown.map(([value, words]) => make("option", { value, selected: value === present }, words)));
    return labelled(title, holder, control, hint);
  }

  // JSON as text. While it is none, the text itself is kept in its place: then the check names the fault, and nothing is lost.
  function json(owner, key, title, changed, { hint } = {}) {
    const present = owner[key];
    const control = make("textarea", {
      class: "orc-code", rows: 3, spellcheck: false,
      value: present === undefined ? "" : typeof present === "string" ? present : JSON.stringify(present, null, 2),
      on: {
        input: () => {
          let found = control.value.trim() === "" ? undefined : control.value;
          try { if (found !== undefined) found = JSON.parse(found); } catch { /* kept as text */ }
          set(owner, key, found);
          changed();
        },
      },
    });
    return labelled(title, key, control, hint);
  }

  return { make, set, labelled, text, number, flag, choice, json };
})();
