// Keeps the parts of a page up to date that say so:
//
//   <section id="rows" data-live="activity pipeline_run">   fetched again after events of these kinds ("" for none)
//   <section id="load" data-live="" data-every="5">          fetched again every 5 seconds
//   <div id="texts" data-live="activity" data-version="3">    swapped only when its version is another
//   <main-part data-live-only="pipeline_run=ID">             events of this run alone are listened to
//
// An event only says that something has changed: the parts are taken from the same address as the page itself, so they are never patched
// and never disagree. After every (re)connection they are fetched once, so nothing that happened in between is missed. While the connection
// is lost the page says so and pales. A hidden tab listens to nothing, and catches up when it is looked at.
"use strict";

(() => {
  const LEAST_BETWEEN = 700; // milliseconds from the start of one fetch to the next
  const AGAIN = 3000; // after the server has refused a stream
  const HIDDEN_FOR = 5000; // then a tab gives its connection to others

  const parts = () => [...document.querySelectorAll("[data-live][id]")];
  const banner = document.querySelector("#connection");
  const address = document.body.dataset.stream;
  const kinds = (document.body.dataset.kinds || "").split(" ");
  let source = null;
  let lastSeen = "";
  let fetching = false;
  let wanted = new Set(); // ids of parts to be fetched
  let lastFetch = 0;
  let timer = 0;
  let away = 0;
  let failed = false;
  let refused = false;

  const time = () => new Date().toLocaleTimeString();
  let freshAt = time();

  function lost(words) {
    failed = true;
    document.body.classList.add("stale");
    banner.hidden = false;
    banner.textContent = `${words} What you see is from ${freshAt}.`;
  }

  function found() {
    failed = false;
    document.body.classList.remove("stale");
    banner.hidden = true;
  }

  function want(chosen) {
    chosen.forEach((part) => wanted.add(part.id));
    if (!wanted.size || fetching || timer || document.hidden) return;
    timer = setTimeout(() => { timer = 0; refresh(); }, Math.max(0, lastFetch + LEAST_BETWEEN - Date.now()));
  }

  async function refresh() {
    const ids = wanted;
    const here = location.href;
    wanted = new Set();
    fetching = true;
    lastFetch = Date.now();
    try {
      const answer = await fetch(location.href, { headers: { "X-Live": "1" }, credentials: "same-origin" });
      if (answer.redirected && new URL(answer.url).pathname !== location.pathname) return location.reload();
      // A page that is answered 400 says what is wrong with the query.
      if (answer.status > 400 && answer.status < 500) return gone();
      if (answer.status >= 500) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      // Meanwhile the person may have gone on to another query: this answer is not to theirs.
      if (location.href !== here) ids.forEach((id) => wanted.add(id));
      else ids.forEach((id) => swap(document.getElementById(id), page.getElementById(id)));
      freshAt = time();
      if (!refused && (!source || source.readyState === EventSource.OPEN)) found();
      document.dispatchEvent(new CustomEvent("live:refreshed"));
    } catch {
      ids.forEach((id) => wanted.add(id));
      lost("The server does not answer. Trying again…");
      setTimeout(() => want([]), AGAIN);
    } finally {
      fetching = false;
    }
    if (wanted.size && !failed) want([]);
  }

  function gone() {
    lost("This page cannot be read any more.");
    if (source) source.close();
  }

  // What the person has opened, ticked or focused stays so. A part in which somebody writes waits until they have done.
  function swap(old, fresh) {
    if (!old || !fresh || old.isEqualNode(fresh)) return;
    if (old.dataset.version && old.dataset.version === fresh.dataset.version) return; // what it loads by itself stays
    const focus = old.contains(document.activeElement) ? document.activeElement : null;
    if (focus && focus.matches("textarea, select, input:not([type=checkbox], [type=radio])")) {
      focus.addEventListener("blur", () => want([old]), { once: true });
      return;
    }
    const opened = [...old.querySelectorAll("details[id][open]")].map((one) => one.id);
    const ticked = [...old.querySelectorAll("input[type=checkbox]:checked")].map((one) => one.value);
    const scrolled = [...old.querySelectorAll("[data-keeps-scroll][id]")].map((one) => [one.id, one.scrollLeft, one.scrollTop]);
    const link = focus && (focus.id ? `#${CSS.escape(focus.id)}` : focus.href ? `a[href="${CSS.escape(focus.getAttribute("href"))}"]` : "");
    const made = document.importNode(fresh, true);
    old.replaceWith(made);
    opened.forEach((id) => { const one = document.getElementById(id); if (one) one.open = true; });
    ticked.forEach((value) => made.querySelectorAll("input[type=checkbox]").forEach((one) => { if (one.value === value) one.checked = true; }));
    scrolled.forEach(([id, left, top]) => { const one = document.getElementById(id); if (one) one.scrollTo(left, top); });
    if (link) { const again = made.matches(link) ? made : made.querySelector(link); if (again) again.focus({ preventScroll: true }); }
    if (window.htmx) window.htmx.process(made);
  }

  const listens = (part, kind) => part.dataset.live.split(" ").some((one) => one && kind.startsWith(one));

  function listen() {
    if (source || !address || document.hidden || !parts().some((part) => part.dataset.live)) return;
    const only = document.querySelector("[data-live-only]");
    const after = lastSeen ? `&after=${lastSeen}` : "";
    source = new EventSource(`${address}${only ? `&${only.dataset.liveOnly}` : ""}${after}`);
    source.addEventListener("open", () => { refused = false; want(parts()); });
    source.addEventListener("reset", () => want(parts()));
    kinds.forEach((kind) => source.addEventListener(kind, (event) => {
      lastSeen = event.lastEventId || lastSeen;
      want(parts().filter((part) => listens(part, kind)));
    }));
    source.addEventListener("error", () => {
      lost("The connection is lost. Reconnecting…");
      if (source && source.readyState === EventSource.CLOSED) {
        source = null;
        refused = true; // the browser does not come back by itself
        setTimeout(listen, AGAIN);
      }
    });
  }

  function rest() {
    if (source) source.close();
    source = null;
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(away);
    if (document.hidden) { away = setTimeout(rest, HIDDEN_FOR); return; }
    listen();
    want(parts());
  });
  window.addEventListener("pagehide", rest);
  window.addEventListener("pageshow", (event) => { if (event.persisted) { listen(); want(parts()); } });

  setInterval(() => {
    if (document.hidden) return;
    const due = parts().filter((part) => part.dataset.every && Date.now() - (part.refreshedAt || loadedAt) >= part.dataset.every * 1000);
    due.forEach((part) => { part.refreshedAt = Date.now(); });
    if (due.length && Date.now() - lastFetch >= 900) want(due);
  }, 1000);
  const loadedAt = Date.now();

  // A button that asks before it does: <button data-confirm="Cancel it?">.
  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element && event.target.closest("[data-confirm]");
    if (button && !window.confirm(button.dataset.confirm)) event.preventDefault();
  });

  document.addEventListener("htmx:afterSettle", listen); // what was swapped in may be the first that is live
  // htmx may have answered into a part that was replaced in the meantime: what belongs to the new address is fetched once more.
  document.addEventListener("htmx:pushedIntoHistory", () => want(parts()));
  listen();
})();
