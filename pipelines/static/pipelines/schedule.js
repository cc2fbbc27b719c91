// The preview in the form of a schedule: asks the server what the form, as it is filled in, would come to. It asks after a pause in
// typing, and at once when the button is pressed. The server writes the answer; without this file the form works as it is.
"use strict";

(() => {
  const PAUSE = 400; // ms without a keystroke
  const start = () => {
    const panel = document.querySelector("#schedule-preview");
    if (!panel) return;
    const form = panel.closest("form");
    const answer = panel.querySelector("[data-answer]");
    let waiting = null; // the timer of a pause
    let asked = null; // the question that is under way

    async function ask() {
      clearTimeout(waiting);
      if (asked) asked.abort();
      const mine = (asked = new AbortController());
      panel.classList.add("busy");
      try {
        const body = new FormData(form);
        body.set("schedule", panel.dataset.schedule);
        const got = await fetch(panel.dataset.url, { method: "POST", body, signal: mine.signal });
        if (!got.ok) throw new Error(`the server answered ${got.status}`);
        answer.innerHTML = await got.text(); // escaped by the server's template
      } catch (error) {
        if (error.name === "AbortError") return; // a newer question took its place
        answer.textContent = `There is no preview right now: ${error.message}.`;
      }
      if (asked === mine) panel.classList.remove("busy");
    }

    // Fields of the other kind of target or time are dimmed, as they will be ignored.
    function dim() {
      const value = (name) => (form.elements[name] ? form.elements[name].value : "");
      const once = value("repeat") === "once";
      const unused = {
        agent_role: value("target_type") === "pipeline",
        pipeline: value("target_type") === "agent",
        cron: once, interval_ms: once, end_at: once,
        after_once: !once,
        catch_up_most: value("catch_up_policy") !== "up_to",
      };
      for (const [name, is] of Object.entries(unused)) {
        const place = form.querySelector(`.field-${name}`);
        if (place) place.classList.toggle("orc-unused", is);
      }
    }

    function changed() {
      dim();
      clearTimeout(waiting);
      waiting = setTimeout(ask, PAUSE);
    }

    form.addEventListener("input", changed);
    form.addEventListener("change", changed);
    // The fields that search as one types tell of a choice by way of jQuery alone.
    if (window.django && window.django.jQuery) window.django.jQuery(form).on("select2:select", changed);
    panel.querySelector("[data-preview]").addEventListener("click", ask);
    dim();
    ask();
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
