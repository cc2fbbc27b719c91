// One event stream for all windows of a browser with the same tenant.
//
//   const stream = window.followEvents(address, kinds, { onEvent(kind, about), onState(state) });
//   stream.leave();
//
// A browser opens at most six connections to a server, so with a stream for each window the seventh one would wait forever. One window has the
// stream and forwards its events to the others; when it is closed or hidden, another one takes over. A window that hears nothing for a while
// takes over by force, because a suspended window does not respond. Browsers without locks (pages without TLS) open a stream for each window.
//
// States: "open", after which everything has to be requested once; "lost"; "refused", if the server gives no stream; "displaced", if the server
// gave the stream to a newer page of the same person.
"use strict";

(() => {
  const RETRY = 3000; // milliseconds until the next try after a refused stream
  const ASK = 5000; // between checks that the window with the stream is alive
  const PATIENCE = 2000; // without a response for so long, it is not

  window.followEvents = (address, kinds, { onEvent, onState }) => {
    const me = Math.random().toString(36).slice(2);
    const channel = window.BroadcastChannel && navigator.locks ? new BroadcastChannel(`live ${address}`) : null;
    const aborting = new AbortController();
    let events = null;
    let state = "";
    let releaseLock = null; // a function, while this window has the lock
    let timer = 0;
    let askedAt = 0;
    let hasLeft = false;

    function setState(next) {
      state = next;
      onState(next);
      if (channel && releaseLock) channel.postMessage({ state });
    }

    function open() {
      clearTimeout(timer);
      if (hasLeft || events) return;
      events = new EventSource(address);
      events.addEventListener("open", () => setState("open"));
      events.addEventListener("reset", () => setState("open"));
      events.addEventListener("displaced", () => { closeStream(); setState("displaced"); });
      events.addEventListener("error", () => {
        if (events.readyState !== EventSource.CLOSED) return setState("lost");
        closeStream();
        setState("refused"); // the browser does not reconnect then
        timer = setTimeout(open, RETRY);
      });
      kinds.forEach((kind) => events.addEventListener(kind, (event) => {
        const { activity, pipeline_run, data } = JSON.parse(event.data);
        const about = { activity, pipeline_run, human: Boolean(data && data.human_role) };
        onEvent(kind, about);
        if (channel) channel.postMessage({ kind, about });
      }));
    }

    function closeStream() {
      clearTimeout(timer);
      if (events) events.close();
      events = null;
    }

    // Waits until no other window has the stream, then opens it.
    function queue(options) {
      const lead = () => new Promise((done) => { if (hasLeft) return done(); releaseLock = done; askedAt = 0; open(); });
      navigator.locks.request(`live ${address}`, options, lead).catch(() => {
        // Another window took over by force, or this one was closed.
        releaseLock = null;
        closeStream();
        if (!hasLeft) queue({ signal: aborting.signal });
      });
    }

    function ask() {
      if (hasLeft || releaseLock || document.hidden) return;
      askedAt = askedAt || Date.now();
      channel.postMessage({ ask: me });
      setTimeout(() => { if (askedAt && !releaseLock && !hasLeft && !document.hidden) queue({ steal: true }); }, PATIENCE);
    }

    function listen(message) {
      if (message.again && releaseLock) return open();
      if (message.ask && releaseLock) channel.postMessage({ state, to: message.ask });
      if (message.ask || message.again) return;
      if (releaseLock || (message.to && message.to !== me)) return;
      askedAt = 0;
      if (message.kind) onEvent(message.kind, message.about);
      else if (!message.to || message.state !== state) { state = message.state; onState(state); }
    }

    let askTimer = 0;
    if (channel) {
      channel.onmessage = (event) => listen(event.data);
      queue({ signal: aborting.signal });
      ask();
      askTimer = setInterval(ask, ASK);
    } else open();

    return {
      get state() { return state; },
      // After "displaced": request the stream again.
      again() { if (releaseLock || !channel) open(); else channel.postMessage({ again: true }); },
      leave() {
        hasLeft = true;
        clearInterval(askTimer);
        closeStream();
        aborting.abort();
        if (releaseLock) releaseLock();
        if (channel) channel.close();
      },
    };
  };
})();
