// Replaces a part of a page by the server's current version. Open details, checked boxes, scroll positions and the focus are kept.
//
//   <div data-version="3">          replaced only if its version differs: content that it has loaded itself stays
//   <article data-keeps-writing>    not replaced while it contains input that was not sent
//   <time data-passes>              updated in place if nothing else has changed
//   <ul data-keyed>                 only children that differ are replaced, by id, so that the list does not jump
"use strict";

(() => {
  const WRITING = "textarea, select, input:not([type=checkbox], [type=radio], [type=hidden])";
  const PICKED = "input[type=checkbox], input[type=radio]";

  const isWritten = (part) =>
    [...part.querySelectorAll("textarea")].some((one) => one.value !== one.defaultValue) ||
    [...part.querySelectorAll(PICKED)].some((one) => one.checked !== one.defaultChecked);

  // A selector that finds the focused element again in the new part.
  const selectorOf = (one) => (one.id ? `#${CSS.escape(one.id)}` : one.href ? `a[href="${CSS.escape(one.getAttribute("href"))}"]`
    : one.name && one.value ? `[name="${CSS.escape(one.name)}"][value="${CSS.escape(one.value)}"]` : "");

  function replace(old, fresh) {
    const focus = old.contains(document.activeElement) ? selectorOf(document.activeElement) : "";
    const opened = [...old.querySelectorAll("details[id][open]")].map((one) => one.id);
    const ticked = [...old.querySelectorAll("input[type=checkbox]:checked")].map((one) => one.value);
    const scrolled = [...old.querySelectorAll("[data-keeps-scroll][id]")].map((one) => [one.id, one.scrollLeft, one.scrollTop]);
    const element = document.importNode(fresh, true);
    old.replaceWith(element);
    opened.forEach((id) => { const one = document.getElementById(id); if (one) one.open = true; });
    element.querySelectorAll("input[type=checkbox]").forEach((one) => { if (ticked.includes(one.value)) one.checked = true; });
    scrolled.forEach(([id, left, top]) => { const one = document.getElementById(id); if (one) one.scrollTo(left, top); });
    if (focus) { const again = element.matches(focus) ? element : element.querySelector(focus); if (again) again.focus({ preventScroll: true }); }
    if (window.htmx) window.htmx.process(element);
  }

  // Whether both parts are equal, apart from the forms' token, which every response masks differently, and passing times, which are updated in
  // place. Equal parts are not replaced, so that no click is lost.
  function isSame(old, fresh) {
    const TOKEN = "input[name=csrfmiddlewaretoken]";
    const ours = old.querySelector(TOKEN) || document.querySelector(TOKEN);
    if (ours) fresh.querySelectorAll(TOKEN).forEach((one) => one.setAttribute("value", ours.value));
    const [was, is] = [old, fresh].map((one) => [...one.querySelectorAll("[data-passes]")]);
    if (was.length === is.length && !("keyed" in old.dataset)) {
      was.forEach((one, place) => { if (one.textContent !== is[place].textContent) one.textContent = is[place].textContent; });
    }
    return old.isEqualNode(fresh);
  }

  // Children are moved as little as possible, because a moved element loses the focus.
  function replaceChildrenById(old, fresh) {
    const coming = new Set([...fresh.children].map((one) => one.id));
    [...old.children].forEach((one) => { if (!coming.has(one.id)) one.remove(); });
    let at = old.firstElementChild;
    [...fresh.children].forEach((one) => {
      const here = [...old.children].find((other) => other.id === one.id);
      if (!here) return old.insertBefore(document.importNode(one, true), at);
      if (here === at) at = at.nextElementSibling;
      else old.insertBefore(here, at);
      if (!isSame(here, one)) replace(here, one);
    });
  }

  // Only addresses of this site may be requested, whatever the page contains.
  window.ownAddress = (given) => {
    const address = new URL(given, location.href);
    if (address.origin !== location.origin) throw new Error("The address is not on this site.");
    return address;
  };

  // Calls `later` when a field that blocks the replacement loses the focus.
  window.replacePart = (old, fresh, later) => {
    if (!old || !fresh || isSame(old, fresh)) return;
    if (old.dataset.version && old.dataset.version === fresh.dataset.version) return;
    const focus = old.contains(document.activeElement) ? document.activeElement : null;
    if (focus && focus.matches(WRITING)) focus.addEventListener("blur", later, { once: true });
    else if ("keepsWriting" in old.dataset && isWritten(old)) return;
    else if ("keyed" in old.dataset) replaceChildrenById(old, fresh);
    else replace(old, fresh);
  };
})();
