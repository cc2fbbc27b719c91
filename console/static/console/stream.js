// One event stream for all windows of a browser with the same tenant.
//
//   const following = window.followed(address, kinds, { heard(kind, about), changed(state) });
//   following.leave();
//
// A browser opens at most six connections to a server, so with a stream for each window the seventh one would wait forever. One window has the
// stream and forwards its events to the others; when it is closed or hidden, another one takes over. A window that hears nothing for a while
// takes over by force, because a suspended window does not respond. Browsers without locks (pages without TLS) open a stream for each window.
//
// States: "open", after which everything has to be requested once; "lost"; "refused", if the server gives no stream; "displaced", if the server
// gave the stream to a newer page of the same person.
"use strict";

(() => {
  const AGAIN = 3000; // milliseconds until the next try after a refused stream
  const ASK = 5000; // between checks that the window with the stream is alive
  const SILENT = 2000; // without a response for so long, it is not

  window.followed = (address, kinds, { heard, changed }) => {
    const me = Math.random().toString(36).slice(2);
    const channel = window.BroadcastChannel && navigator.locks ? new BroadcastChannel(`live ${address}`) : null;
    const gone = new AbortController();
    let source = null;
    let state = "";
    let give = null; // releases this window's lock
    let timer = 0;
    let asked = 0;
    let left = false;

    function become(next) {
      state = next;
      changed(next);
      if (channel && give) channel.postMessage({ state });
    }

    function open() {
      clearTimeout(timer);
      if (left || source) return;
      source = new EventSource(address);
      source.addEventListener("open", () => become("open"));
      source.addEventListener("reset", () => become("open"));
      source.addEventListener("displaced", () => { shut(); become("displaced"); });
      source.addEventListener("error", () => {
        if (source.readyState !== EventSource.CLOSED) return become("lost");
        shut();
        become("refused"); // the browser does not reconnect then
        timer = setTimeout(open, AGAIN);
      });
      kinds.forEach((kind) => source.addEventListener(kind, (event) => {
        const { activity, pipeline_run, data } = JSON.parse(event.data);
        const about = { activity, pipeline_run, human: Boolean(data && data.human_role) };
        heard(kind, about);
        if (channel) channel.postMessage({ kind, about });
      }));
    }

    function shut() {
      clearTimeout(timer);
      if (source) source.close();
      source = null;
    }

    // Waits until no other window has the stream, then opens it.
    function queue(options) {
      const lead = () => new Promise((done) => { if (left) return done(); give = done; asked = 0; open(); });
      navigator.locks.request(`live ${address}`, options, lead).catch(() => {
        // Another window took over by force, or this one was closed.
        give = null;
        shut();
        if (!left) queue({ signal: gone.signal });
      });
    }

    function ask() {
      if (left || give || document.hidden) return;
      asked = asked || Date.now();
      channel.postMessage({ ask: me });
      setTimeout(() => { if (asked && !give && !left && !document.hidden) queue({ steal: true }); }, SILENT);
    }

    function listen(message) {
      if (message.again && give) return open();
      if (message.ask && give) channel.postMessage({ state, to: message.ask });
      if (message.ask || message.again) return;
      if (give || (message.to && message.to !== me)) return;
      asked = 0;
      if (message.kind) heard(message.kind, message.about);
      else if (!message.to || message.state !== state) { state = message.state; changed(state); }
    }

    let asking = 0;
    if (channel) {
      channel.onmessage = (event) => listen(event.data);
      queue({ signal: gone.signal });
      ask();
      asking = setInterval(ask, ASK);
    } else open();

    return {
      get state() { return state; },
      // After "displaced": request the stream again.
      again() { if (give || !channel) open(); else channel.postMessage({ again: true }); },
      leave() {
        left = true;
        clearInterval(asking);
        shut();
        gone.abort();
        if (give) give();
        if (channel) channel.close();
      },
    };
  };
})();
