// The preview in the form of a schedule: sends the form to the server after a pause in typing, or when the button is pressed. The
// server renders the preview. Without this file the form works without a preview.
"use strict";

(() => {
  const PAUSE = 400; // ms without a keystroke
  const start = () => {
    const panel = document.querySelector("#schedule-preview");
    if (!panel) return;
    const form = panel.closest("form");
    const answer = panel.querySelector("[data-answer]");
    let timer = null; // of the pause
    let current = null; // the request in progress

    async function load() {
      clearTimeout(timer);
      if (current) current.abort();
      const request = (current = new AbortController());
      panel.classList.add("busy");
      try {
        const body = new FormData(form);
        body.set("schedule", panel.dataset.schedule);
        const response = await fetch(panel.dataset.url, { method: "POST", body, signal: request.signal });
        if (!response.ok) throw new Error(`the server answered ${response.status}`);
        answer.innerHTML = await response.text(); // escaped by the server's template
      } catch (error) {
        if (error.name === "AbortError") return; // a newer request has replaced it
        answer.textContent = `The preview is not available: ${error.message}.`;
      }
      if (current === request) panel.classList.remove("busy");
    }

    // Dim the fields of the other kind of target or time, because they are ignored.
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
      for (const [name, isUnused] of Object.entries(unused)) {
        const field = form.querySelector(`.field-${name}`);
        if (field) field.classList.toggle("orc-unused", isUnused);
      }
    }

    function changed() {
      dim();
      clearTimeout(timer);
      timer = setTimeout(load, PAUSE);
    }

    form.addEventListener("input", changed);
    form.addEventListener("change", changed);
    // Autocomplete fields report a choice only through jQuery.
    if (window.django && window.django.jQuery) window.django.jQuery(form).on("select2:select", changed);
    panel.querySelector("[data-preview]").addEventListener("click", load);
    dim();
    if (panel.dataset.schedule || form.elements.name.value) load(); // an empty form would show only errors
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
