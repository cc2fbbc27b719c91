// Updates the marked parts of a page live:
//
//   <section id="rows" data-live="activity pipeline_run">   requested again after events of these kinds ("" for none)
//   <section id="load" data-live="" data-every="5">          requested again every 5 seconds
//   <ul id="rows" data-live="activity" data-live-only="human=true">    only events about work for people; or about one object: activity=ID
//
// An event only tells that something has changed: the parts are requested from the page's own address, or from the one in `data-live-from`, so
// they always agree with the server. After every (re)connection they are requested once, so nothing is missed. While the connection is lost the
// page says so and fades. A hidden tab does not listen, and catches up when it is visible again. `stream.js` provides the events, and `parts.js`
// replaces the parts.
"use strict";

(() => {
  const LEAST_BETWEEN = 700; // milliseconds from the start of one fetch to the next
  const RETRY = 3000; // after a fetch that failed
  const BUSY = [408, 425, 429]; // a proxy wants the same request later
  const POLL = 5000; // between fetches without a stream
  const HIDDEN_FOR = 5000; // after which a hidden tab leaves its connection to others
  const SLOW = {
    refused: `Live updates are not available. This page is updated every ${POLL / 1000} seconds.`,
    displaced: `You have too many pages open for live updates. This page is updated every ${POLL / 1000} seconds.`,
  };

  // The response to a form may have no address of its own.
  const partsFrom = () => { const one = document.querySelector("[data-live-from]"); return one ? one.dataset.liveFrom : location.href; };
  const parts = () => [...document.querySelectorAll("[data-live][id]")];
  const banner = document.querySelector("#connection");
  const address = document.body.dataset.stream;
  const kinds = (document.body.dataset.kinds || "").split(" ");
  let stream = null;
  let fetching = false;
  let requested = new Set(); // ids of parts to be fetched
  let lastFetch = 0;
  let timer = 0;
  let away = 0;
  let failed = false;

  const time = () => new Date().toLocaleTimeString();
  let freshAt = time();

  function showOutdated(words) {
    failed = true;
    document.body.classList.add("stale");
    banner.hidden = false;
    banner.textContent = `${words} This page was updated at ${freshAt}.`;
  }

  // The page is up to date: hide the banner, unless updates are slow because there is no stream.
  function showCurrent() {
    const slow = SLOW[stream && stream.state];
    failed = false;
    document.body.classList.remove("stale");
    banner.hidden = !slow;
    if (slow) banner.textContent = slow;
  }

  function requestParts(chosen) {
    chosen.forEach((part) => requested.add(part.id));
    if (!requested.size || fetching || timer || document.hidden) return;
    timer = setTimeout(() => { timer = 0; refresh(); }, Math.max(0, lastFetch + LEAST_BETWEEN - Date.now()));
  }

  async function refresh() {
    const ids = requested;
    const here = location.href;
    requested = new Set();
    fetching = true;
    lastFetch = Date.now();
    try {
      const from = ownAddress(partsFrom());
      const answer = await fetch(ownAddress(from), { headers: { "X-Live": [...ids].join(" ") }, credentials: "same-origin" });
      if (answer.redirected && new URL(answer.url).pathname !== from.pathname) return location.reload();
      // A response of 400 is a page that displays the error of a query.
      if (answer.status >= 500 || BUSY.includes(answer.status)) throw new Error(String(answer.status));
      if (answer.status > 400) return gone();
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      // The person may have changed the query meanwhile; then this response is outdated.
      if (location.href !== here) ids.forEach((id) => requested.add(id));
      else replaceParts(ids, page);
      freshAt = time();
      if (!stream || stream.state !== "lost") showCurrent();
    } catch {
      ids.forEach((id) => requested.add(id));
      showOutdated("The server does not respond. Retrying…");
      setTimeout(() => requestParts([]), RETRY);
    } finally {
      fetching = false;
    }
    if (requested.size && !failed) requestParts([]);
  }

  function replaceParts(ids, page) {
    document.dispatchEvent(new CustomEvent("live:refreshing"));
    ids.forEach((id) => {
      const part = document.getElementById(id);
      window.replacePart(part, page.getElementById(id), () => requestParts([part]));
    });
    document.dispatchEvent(new CustomEvent("live:refreshed"));
  }

  function gone() {
    stopListening();
    showOutdated("This page is no longer available.");
  }

  function concerns(part, kind, about) {
    const of = part.closest("[data-live-only]");
    const [name, id] = of ? of.dataset.liveOnly.split("=") : [];
    return part.dataset.live.split(" ").some((one) => one && kind.startsWith(one)) && (!name || String(about[name]) === id);
  }

  function listen() {
    if (stream || !address || document.hidden || !parts().some((part) => part.dataset.live)) return;
    stream = window.followEvents(address, kinds, {
      onEvent: (kind, about) => requestParts(parts().filter((part) => concerns(part, kind, about))),
      onState: (state) => {
        document.body.dataset.following = state;
        if (state === "lost") showOutdated("The connection is lost. Reconnecting…");
        else requestParts(parts());
      },
    });
  }

  function stopListening() {
    if (stream) stream.leave();
    stream = null;
  }

  // A displaced page gets its stream back when it is focused.
  window.addEventListener("focus", () => { if (stream && stream.state === "displaced") stream.again(); });

  document.addEventListener("visibilitychange", () => {
    clearTimeout(away);
    if (document.hidden) { away = setTimeout(stopListening, HIDDEN_FOR); return; }
    listen();
    requestParts(parts());
  });
  window.addEventListener("pagehide", stopListening);
  window.addEventListener("pageshow", (event) => { if (event.persisted) { listen(); requestParts(parts()); } });

  setInterval(() => {
    if (document.hidden) return;
    const isDue = stream && stream.state in SLOW && Date.now() - lastFetch >= POLL;
    const due = parts().filter((part) => isDue || part.dataset.every && Date.now() - (part.refreshedAt || loadedAt) >= part.dataset.every * 1000);
    due.forEach((part) => { part.refreshedAt = Date.now(); });
    if (due.length && Date.now() - lastFetch >= 900) requestParts(due);
  }, 1000);
  const loadedAt = Date.now();

  // A button that asks for confirmation: <button data-confirm="Cancel it?">. The answer replaces the checkbox for browsers without scripts.
  document.querySelectorAll("[data-unscripted]").forEach((one) => { one.hidden = true; });
  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element && event.target.closest("[data-confirm]");
    if (!button) return;
    const checkbox = button.form && button.form.elements.sure;
    if (!window.confirm(button.dataset.confirm)) event.preventDefault();
    else if (checkbox) checkbox.checked = true;
  });

  document.addEventListener("htmx:afterSettle", listen); // the new content may have the first live part
  // htmx may have written into a part that was replaced meanwhile, so request the parts of the new address once more.
  document.addEventListener("htmx:pushedIntoHistory", () => requestParts(parts()));
  listen();
})();
