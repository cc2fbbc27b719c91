// Keyboard shortcuts of the inbox. They only use links, fields and buttons of the page, which also works without this script.
//
// No single key changes anything that cannot be undone: the first press focuses the button, the second one presses it.
//
// live.js may replace the list and the item at any moment, so their elements are looked up when they are needed.
"use strict";

(() => {
  const SWITCH = "inbox-keys";
  const CHOOSING = "#until"; // must not be the id of an element: the browser would move the focus there
  const find = (selector) => document.querySelector(selector);
  const keys = find("#keys");
  const together = () => find("#together");
  const answer = () => find("#answer");
  const links = () => [...document.querySelectorAll("#rows a")];
  const ids = () => [...document.querySelectorAll("#rows li")].map((row) => row.id.slice("row-".length));
  let intended = ""; // the value of the button that the note is for

  const shortcutsAreOn = () => localStorage.getItem(SWITCH) !== "off";
  const say = (words) => { find("#said").textContent = words; };
  const button = (...names) =>
    answer() && [...answer().elements].find((one) => one.name === "action" && names.includes(one.value));

  const rowInFocus = () => document.activeElement && document.activeElement.closest("#rows li");

  // The index of the focused row, else of the open one, else -1.
  function current() {
    const row = rowInFocus();
    return links().findIndex((link) => (row ? row.contains(link) : link.hasAttribute("aria-current")));
  }

  function step(by) {
    const all = links();
    if (!all.length) return say("The list is empty.");
    const at = current();
    const next = at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by));
    all[next].focus();
    all[next].scrollIntoView({ block: "nearest" });
  }

  function open() {
    const at = current();
    if (at >= 0) links()[at].click();
  }

  function select() {
    const at = current();
    const box = at >= 0 && links()[at].parentElement.querySelector("input");
    if (!box) return say("Open this item to answer it.");
    box.click();
    say(`${box.checked ? "Selected" : "Not selected"}. ${chosen()} selected in total.`);
  }

  const chosen = () => (together() ? document.querySelectorAll("#rows input:checked").length : 0);

  function showChosen() {
    if (!together()) return;
    together().classList.toggle("idle", !chosen());
    find("#count").textContent = chosen() ? ` (${chosen()})` : "";
  }

  // Whether the focused row is not the open one. Nobody should answer an item that they have not seen.
  function looksElsewhere() {
    const at = current();
    return at >= 0 && !links()[at].hasAttribute("aria-current");
  }

  function approve() {
    if (chosen()) return press(together().querySelector("button"));
    if (looksElsewhere()) return open();
    press(button("approve"));
  }

  function press(target) {
    if (!target) return say("This action is not available here.");
    if (document.activeElement === target) return target.click();
    target.focus();
    hint(target, "press Enter to confirm.");
  }

  function write(target, field) {
    if (!target) return say("This action is not available here.");
    if (looksElsewhere()) return open();
    intended = target.value;
    (field || answer().elements.notes).focus();
    hint(target, "press Ctrl+Enter to confirm.");
  }

  function hint(target, how) {
    const place = find("#hint");
    if (!place || !answer() || !answer().contains(target)) return;
    place.hidden = false;
    place.textContent = `${target.textContent}: ${how}`;
  }

  // Opens the text for editing before it is approved.
  function edit(place) {
    place.open = true;
    write(button("approve_edited"), answer().elements.edited);
    const target = button("approve_edited");
    target.scrollIntoView({ block: "nearest" });
  }

  function settle() {
    if (looksElsewhere()) return open();
    const editing = find("#editing");
    if (editing) return edit(editing);
    const target = button("resolve", "retry", "complete");
    const result = target && answer().elements.output;
    if (target && (target.dataset.needsNote || result)) write(target, result);
    else press(target);
  }

  // From the list the key first opens the item, because nobody should snooze an item that they have not seen.
  function snooze() {
    if (looksElsewhere()) return location.assign(links()[current()].href.replace(/#.*/, CHOOSING));
    const place = find("#aside");
    if (!place) return say("This action is not available here.");
    place.open = true;
    place.querySelector("button").focus();
  }

  const ACTIONS = {
    j: () => step(1),
    k: () => step(-1),
    o: open,
    x: select,
    a: approve,
    r: () => write(button("reject")),
    f: () => write(button("approve", "resolve", "complete")),
    e: settle,
    s: snooze,
    u: () => {
      const last = [...document.querySelectorAll("#held button[value=undo]")].pop();
      if (last) last.click();
      else say("There is nothing to undo.");
    },
    Escape: () => { const back = find(".back"); if (back) back.click(); },
    "/": () => find("#search").focus(),
    "?": () => keys.showModal(),
  };

  // Reports a missing note in the page, without a request to the server.
  function lacksNote(target) {
    const notes = answer().elements.notes;
    const missing = target && target.dataset.needsNote && !notes.value.trim();
    notes.setCustomValidity(missing ? target.dataset.needsNote : "");
    if (missing) { intended = target.value; notes.focus(); notes.reportValidity(); }
    return missing;
  }

  const isWriting = (place) => place.closest("textarea, select, [contenteditable], input:not([type=checkbox], [type=radio])");

  document.addEventListener("keydown", (event) => {
    const place = event.target instanceof Element ? event.target : document.body;
    if (event.isComposing || event.defaultPrevented) return;
    if (isWriting(place)) {
      const inAnswer = answer() && answer().contains(place);
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && inAnswer) {
        event.preventDefault();
        const target = (place.id === "edited" && button("approve_edited")) || button(intended) || button("resolve", "complete");
        if (target) target.click();
        else say("Press one of the buttons.");
      } else if (event.key === "Escape") {
        ((inAnswer && button(intended)) || place.closest("section, .list")).focus();
        place.blur();
      }
      return;
    }
    if (event.key === "Enter" && place.matches("input[type=radio]")) return event.preventDefault();
    if (event.ctrlKey || event.metaKey || event.altKey || keys.open || !shortcutsAreOn()) return;
    const action = ACTIONS[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });

  document.addEventListener("input", (event) => { if (event.target.id === "notes") event.target.setCustomValidity(""); });
  document.addEventListener("submit", (event) => {
    if (event.target !== answer()) return;
    if (lacksNote(event.submitter)) return event.preventDefault();
    // Disable the buttons: a second press while the first is being sent would only be refused.
    setTimeout(() => event.target.querySelectorAll("button").forEach((one) => { one.disabled = true; }));
  });

  window.addEventListener("pageshow", () => {
    document.querySelectorAll("button:disabled").forEach((one) => { one.disabled = false; });
    showChosen();
  });

  document.addEventListener("change", (event) => {
    if (event.target.form && event.target.form === together()) showChosen();
    if (event.target.id === "keys-on") localStorage.setItem(SWITCH, event.target.checked ? "on" : "off");
  });

  // If somebody else decided the focused item, focus the next row and announce the items that are gone.
  let before = { at: -1, ids: [] };
  document.addEventListener("live:refreshing", () => {
    before = { at: rowInFocus() ? current() : -1, ids: ids() };
  });
  document.addEventListener("live:refreshed", () => {
    showChosen();
    const all = links();
    if (before.at >= 0 && !rowInFocus() && all.length) all[Math.min(before.at, all.length - 1)].focus({ preventScroll: true });
    showOver();
    const gone = before.ids.filter((id) => !ids().includes(id));
    if (gone.length) announceClosed(gone);
  });

  // If somebody else was faster, a half-written answer stays in the page but cannot be sent.
  function showOver() {
    const over = find("#verdict .over");
    if (!over || !answer()) return;
    answer().querySelectorAll("button").forEach((one) => { one.disabled = true; });
    find("#hint").hidden = false;
    find("#hint").textContent = over.textContent;
  }

  const GONE_FOR = 20000; // milliseconds
  const GONE_AT_MOST = 3; // of them at once

  async function announceClosed(gone) {
    const place = find("#gone");
    const answered = await fetch(ownAddress(`${place.dataset.ask}&id=${gone.join("&id=")}`), { credentials: "same-origin" }).catch(() => null);
    if (!answered || !answered.ok) return;
    const notes = [...new DOMParser().parseFromString(await answered.text(), "text/html").querySelectorAll("p")];
    notes.map((one) => document.importNode(one, true)).forEach((one) => {
      place.append(one);
      setTimeout(() => one.remove(), GONE_FOR);
    });
    while (place.childElementCount > GONE_AT_MOST) place.firstElementChild.remove();
  }

  const help = find("#show-keys");
  help.hidden = false;
  help.addEventListener("click", () => keys.showModal());
  find("#keys-on").checked = shortcutsAreOn();
  const notice = find("#notice") || find("#held:has(form)");
  if (notice) notice.focus();
  else if (location.hash === CHOOSING && find("#aside")) snooze();
})();
