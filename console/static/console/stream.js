// One stream of events for all windows of a browser that look at the same tenant.
//
//   const following = window.followed(address, kinds, { heard(kind, about), changed(state) });
//   following.leave();
//
// A browser opens six connections to a server, so a stream for each window would let the seventh wait for ever. One window has the stream and
// tells the others what it hears; when it is left, closed or hidden, another one takes over. Anyone who has nothing from it for a while takes over
// by force: a window that the system has put to sleep answers nobody. Where a browser cannot lock (pages without TLS), each window has its own.
//
// States: "open", after which everything is to be fetched once; "lost"; "refused", when the server gives no stream; "displaced", when the server
// gave the place to a newer one of the same person.
"use strict";

(() => {
  const AGAIN = 3000; // milliseconds; after the server has refused a stream
  const ASK = 5000; // from one question whether the window with the stream is there to the next
  const SILENT = 2000; // then it is not

  window.followed = (address, kinds, { heard, changed }) => {
    const me = Math.random().toString(36).slice(2);
    const channel = window.BroadcastChannel && navigator.locks ? new BroadcastChannel(`live ${address}`) : null;
    const gone = new AbortController();
    let source = null;
    let state = "";
    let give = null; // gives up the lock that this window has
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
        become("refused"); // the browser does not come back by itself
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

    // Waits until no other window has the stream, and has it from then on.
    function queue(options) {
      const lead = () => new Promise((done) => { if (left) return done(); give = done; asked = 0; open(); });
      navigator.locks.request(`live ${address}`, options, lead).catch(() => {
        // Another window took over by force, or this one is left.
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
      // After "displaced": somebody wants to see at once what happens.
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
