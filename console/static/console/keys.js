// Keyboard shortcuts of every page: `g` and a letter open a page, `/` focuses the search, `j` and `k` move along the rows, Ctrl-K opens
// anything by its name. They only use links and fields of the page, which also works without this script. The inbox has more shortcuts.
"use strict";

(() => {
  const SWITCH = "inbox-keys"; // disables all single-key shortcuts; set in the inbox's overview of its keys
  const PATIENCE = 1500; // milliseconds between `g` and its letter
  const FIELD = "input, select, textarea, [contenteditable]";
  const find = (what, where = document) => where.querySelector(what);
  const all = (what, where = document) => [...where.querySelectorAll(what)];
  const isInbox = () => find(".inbox") !== null;
  const isOff = () => { try { return localStorage.getItem(SWITCH) === "off"; } catch { return false; } };
  const isOpen = () => find("dialog[open]") !== null;

  const made = (name, text = "", attributes = {}) => {
    const one = document.createElement(name);
    one.textContent = text;
    Object.entries(attributes).forEach(([key, value]) => one.setAttribute(key, value));
    return one;
  };

  // The pages of the menu.
  const places = () => all(".places a[href]").map((link) => ({
    words: link.textContent.trim(), address: link.href, key: link.dataset.go || "",
  }));
  const tenants = () => all(".chooser nav a[href]").map((link) => ({
    words: `Tenant: ${link.textContent.trim()}`, address: link.href, key: "",
  }));

  const searchOf = () => all("main input[type=search], main form.filter input:not([type=hidden]), main form.filter select")
    .find((one) => one.offsetParent !== null);

  function along(step) {
    const rows = all("main table tbody tr").map((row) => find("a[href]", row)).filter((link) => link && link.offsetParent !== null);
    if (!rows.length) return;
    const at = rows.indexOf(document.activeElement);
    rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + step))].focus();
  }

  // The dialog that lists the shortcuts.
  function overview() {
    const dialog = made("dialog", "", { "aria-labelledby": "all-keys-title", class: "keys" });
    const list = made("dl");
    const line = (keys, words) => {
      const [row, term] = [made("div"), made("dt")];
      keys.forEach((key) => term.append(made("kbd", key), " "));
      row.append(term, made("dd", words));
      list.append(row);
    };
    places().filter((place) => place.key).forEach((place) => line(["g", place.key], place.words));
    line(["/"], "search this page");
    line(["j", "k"], "next, previous row; Enter opens it");
    line(["Ctrl", "K"], "open anything by its name");
    line(["?"], "show these shortcuts");
    const form = made("form", "", { method: "dialog" });
    form.append(made("button", "Close", { type: "submit" }));
    dialog.append(made("h2", "Keyboard shortcuts", { id: "all-keys-title" }), list, form);
    show(dialog);
  }

  function show(dialog) {
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }

  // The command palette: pages, tenants, links of this page, and a search for the input.
  function palette() {
    const dialog = made("dialog", "", { class: "palette", "aria-label": "Go to" });
    const field = made("input", "", {
      type: "search", id: "palette-field", role: "combobox", "aria-label": "Go to", "aria-expanded": "true", "aria-controls": "palette-list",
      "aria-autocomplete": "list", autocomplete: "off", spellcheck: "false", placeholder: "A page, a tenant, or search words",
    });
    const list = made("ul", "", { id: "palette-list", role: "listbox", "aria-label": "Results" });
    const here = all("main tbody th a[href]").map((link) => ({ words: link.textContent.trim(), address: link.href, key: "" }));
    const known = [...places(), ...tenants(), ...here];
    const searches = (text) => all("[data-search]").map((link) => {
      const address = new URL(link.href);
      address.searchParams.set(link.dataset.search, text);
      return { words: `${link.textContent.trim()}: ${text}`, address: address.href, key: "" };
    });
    let chosen = 0;

    function mark() {
      const options = [...list.children];
      options.forEach((one, place) => one.setAttribute("aria-selected", String(place === chosen)));
      if (options[chosen]) { field.setAttribute("aria-activedescendant", options[chosen].id); options[chosen].scrollIntoView({ block: "nearest" }); }
      else field.removeAttribute("aria-activedescendant");
    }
    function fill() {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      const found = known.filter((one) => words.every((word) => one.words.toLowerCase().includes(word))).slice(0, 12);
      if (words.length) found.push(...searches(field.value.trim()));
      list.replaceChildren(...found.map((one, place) => {
        const option = made("li", one.words, { role: "option", id: `palette-${place}` });
        option.dataset.address = one.address;
        if (one.key) option.append(" ", made("kbd", `g ${one.key}`));
        return option;
      }));
      chosen = 0;
      mark();
    }
    const go = (option) => { if (option) location.assign(option.dataset.address); };
    field.addEventListener("input", fill);
    field.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) {
        event.preventDefault();
        chosen = Math.min(list.children.length - 1, Math.max(0, chosen + step));
        mark();
      } else if (event.key === "Enter") {
        event.preventDefault();
        go(list.children[chosen]);
      }
    });
    list.addEventListener("click", (event) => go(event.target.closest("li")));
    dialog.append(field, list);
    show(dialog);
    fill();
    field.focus();
  }

  // Listen in the capture phase, so that no other handler gets the letter after `g`.
  let since = 0;
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      if (!isOpen()) palette();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || isOpen() || isOff() || event.target.closest?.(FIELD)) return;
    const follows = since && performance.now() - since < PATIENCE;
    since = 0;
    if (follows) {
      const place = places().find((one) => one.key && one.key === event.key);
      event.preventDefault();
      event.stopImmediatePropagation();
      if (place) location.assign(place.address);
      return;
    }
    if (event.key === "g") { since = performance.now(); return; }
    if (isInbox()) return;
    const action = { "?": overview, j: () => along(1), k: () => along(-1), "/": () => searchOf()?.focus() }[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }, true);
})();
