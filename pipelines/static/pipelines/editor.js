// The pipeline editor: a list of steps that is synchronized with the text, and a picture.
//
// Only the text is saved. A change in the list rewrites the text as JSON at once. The server's check returns it as YAML, with the path of
// every error and the picture. Without this script people edit the text.
"use strict";

(() => {
  const { make, set, labelled, text, number, flag, choice, json } = OrcFields;
  const PAUSE = 350; // milliseconds after the last key before the check
  const MOST_OPEN = 3; // steps; longer lists begin closed
  const ERROR_OF_STEP = /^steps\[(\d+)\](?:\.([A-Za-z_]+))?/;

  function edit(area) {
    const config = JSON.parse(area.dataset.editor);
    const form = area.form;
    let data = null; // the definition, as data
    let view = "steps";
    let checks = 0;
    let timer = null;
    let templates = [];

    const state = make("span", { class: "orc-said", role: "status" });
    const general = make("ul", { class: "orc-faults orc-error" });
    const head = make("div", { class: "orc-grid" });
    const list = make("ol", { class: "orc-step-list" });
    const add = make("button", { type: "button", class: "orc-plain", on: { click: addStep } }, "Add a step");
    const steps = make("div", { class: "orc-panel-steps" }, head, list, add);
    const tabs = {
      steps: make("button", { type: "button", role: "tab", on: { click: () => show("steps") } }, "Steps"),
      text: make("button", { type: "button", role: "tab", on: { click: () => show("text") } }, "Text"),
    };
    const checkNow = make("button", { type: "button", class: "orc-plain", on: { click: check } }, "Check");
    const bar = make("div", { class: "orc-views", role: "tablist" }, tabs.steps, tabs.text, checkNow, state);
    const picture = document.querySelector(".orc-picture") ?? make("div", { class: "orc-picture" });
    const place = picture.isConnected ? null : make("div", {}, picture);
    const root = make("div", { class: "orc-editor" }, bar, general, ...(place ? [place] : []), steps);
    let drawn = picture;

    area.before(root);
    area.addEventListener("input", checkSoon);
    form.addEventListener("change", (event) => { if (event.target.name === "tenant") checkSoon(); });
    form.elements.tenant?.addEventListener?.("change", checkSoon);
    window.jQuery?.(form.elements.tenant).on("change", checkSoon);
    show("steps");
    check();

    function show(name) {
      view = name;
      for (const [each, tab] of Object.entries(tabs)) tab.setAttribute("aria-selected", String(each === view));
      steps.hidden = view !== "steps";
      area.hidden = view !== "text";
      if (view === "steps" && data) build();
    }

    function checkSoon() {
      clearTimeout(timer);
      state.textContent = "…";
      timer = setTimeout(check, PAUSE);
    }

    // After a change in the list: update the text at once, so that saving includes it.
    function changed() {
      area.value = JSON.stringify(data, null, 2);
      checkSoon();
    }

    async function check() {
      clearTimeout(timer);
      const number = ++checks;
      const sent = area.value;
      const tenant = form.elements.tenant?.value || config.tenant;
      const body = new URLSearchParams({ text: sent, tenant, pipeline: config.pipeline });
      let answer;
      try {
        const token = form.elements.csrfmiddlewaretoken.value;
        const response = await fetch(config.check, { method: "POST", body, headers: { "X-CSRFToken": token } });
        if (!response.ok) throw new Error(String(response.status));
        answer = await response.json();
      } catch {
        if (number === checks) state.textContent = "Not checked: the server does not answer.";
        return;
      }
      if (number !== checks || area.value !== sent) return; // a newer check has started
      take(answer);
    }

    function take(answer) {
      const isNew = JSON.stringify(templates) !== JSON.stringify(answer.templates);
      templates = answer.templates;
      if (view === "text" || data === null) {
        data = answer.definition;
        if (view === "steps") data ? build() : show("text");
      } else {
        area.value = answer.text ?? area.value;
        if (isNew) build();
      }
      tabs.steps.disabled = answer.definition === null;
      if (answer.svg) {
        const holder = make("template");
        holder.innerHTML = answer.svg; // drawn by the server, which escapes every text in it
        drawn.replaceWith(holder.content.firstElementChild);
        drawn = document.querySelector(".orc-picture");
      }
      drawn.hidden = !answer.svg; // a picture of older text would contradict the errors
      showErrors(answer.faults, answer.missing);
    }

    // Show every error at its field, else at its step, else at the top.
    function showErrors(errors, missing) {
      for (const spot of steps.querySelectorAll("[data-faults]")) spot.textContent = "";
      general.replaceChildren();
      for (const item of list.children) item.classList.remove("faulty");
      for (const { path, message } of errors) {
        const match = ERROR_OF_STEP.exec(path);
        const item = match ? list.children[Number(match[1])] : null;
        const within = item ?? head;
        item?.ensure?.();
        const key = match ? match[2] : path.split(/[.[]/)[0];
        const spot = within.querySelector(`[data-faults="${key}"]`) ?? item?.querySelector('[data-faults=""]');
        if (spot) spot.textContent += `${spot.textContent ? " " : ""}${path}: ${message}.`;
        if (!spot || view === "text") general.append(make("li", {}, path ? `${path}: ${message}` : message));
        if (item) item.classList.add("faulty");
        for (let each = spot?.closest("details"); each; each = each.parentElement.closest("details")) each.open = true;
      }
      const count = `${errors.length} ${errors.length === 1 ? "error" : "errors"}`;
      state.textContent = errors.length ? count : missing || "No errors";
      state.classList.toggle("orc-error", errors.length > 0);
    }

    // ---- The list

    function build() {
      if (!Array.isArray(data.steps)) data.steps = [];
      head.replaceChildren(
        text(data, "key", "Key", changed, { hint: config.pipeline ? "Cannot be changed." : "The name for programs." }),
        text(data, "name", "Name", changed),
        text(data, "description", "Description", changed, { rows: 2 }),
        text(data, "subject", "What a run is about", changed, { hint: "A template of parameters, such as {{ topic }} for {{ client }}." }),
        json(data, "params", "Parameters for all steps, as JSON", changed),
      );
      list.replaceChildren(...data.steps.map(row));
    }

    function addStep() {
      const ids = new Set(data.steps.map((step) => step.id));
      let count = data.steps.length + 1;
      while (ids.has(`step-${count}`)) count += 1;
      data.steps.push({ id: `step-${count}`, agent_role: config.roles[0] });
      build();
      changed();
      list.lastElementChild.ensure();
      list.lastElementChild.firstElementChild.open = true;
      list.lastElementChild.querySelector("input").focus();
    }

    function move(index, by) {
      const [step] = data.steps.splice(index, 1);
      data.steps.splice(index + by, 0, step);
      build();
      changed();
      list.children[index + by].querySelector("summary").focus();
    }

    function remove(index) {
      const [removed] = data.steps.splice(index, 1);
      for (const step of data.steps) {
        if (Array.isArray(step.depends_on)) step.depends_on = step.depends_on.filter((id) => id !== removed.id);
      }
      build();
      changed();
    }

    function row(step, index) {
      if (typeof step !== "object" || step === null) return make("li", {}, "This step can only be edited in the text.");
      const title = make("span", { class: "orc-step-title" });
      const button = (words, label, act, off) =>
        make("button", { type: "button", class: "orc-plain", disabled: off, "aria-label": label, on: {
          click: (event) => { event.preventDefault(); act(); },
        } }, words);
      const summary = make("summary", {}, title,
        button("↑", "Move up", () => move(index, -1), index === 0),
        button("↓", "Move down", () => move(index, 1), index === data.steps.length - 1),
        button("Remove", "Remove the step", () => remove(index), false));
      const name = () => {
        title.textContent = `${index + 1}. ${step.name || step.id || "?"} — ${step.agent_role || step.human_role || step.template || "?"}`;
      };
      const stepChanged = () => { name(); changed(); };
      name();
      const fields = make("div", { class: "orc-grid" });
      const fill = () => fields.replaceChildren(...fieldsOf(step, stepChanged, () => { fill(); stepChanged(); }));
      const rest = make("p", { class: "orc-error", "data-faults": "" });
      const open = data.steps.length <= MOST_OPEN;
      // Fill the fields when the step is first opened, because a pipeline may have two thousand steps.
      const ensure = () => { if (!fields.childElementCount) fill(); };
      if (open) ensure();
      const item = make("li", {}, make("details", { open, on: { toggle: ensure } }, summary, rest, fields));
      item.ensure = ensure;
      return item;
    }

    function fieldsOf(step, stepChanged, rebuild) {
      const more = [
        text(step, "when", "Only when", stepChanged, { hint: "An expression over the outputs of earlier steps." }),
        text(step, "for_each", "For each of", stepChanged, { hint: "An expression whose value is a list." }),
        choice(step, "on_upstream_failure", "If an earlier step fails", [
          ["", "fail (the default)"], ["fail", "fail"], ["skip", "skip"], ["continue", "continue"],
        ], stepChanged),
        number(step, "dependency_timeout_seconds", "Timeout of earlier steps, seconds", stepChanged),
        number(step, "timeout_seconds", "Timeout of an attempt, seconds", stepChanged),
        ...retryOf(step, stepChanged),
      ];
      const isSet = ["when", "for_each", "dependency_timeout_seconds", "timeout_seconds", "retry"].some((key) => key in step)
        || (step.on_upstream_failure ?? "fail") !== "fail";
      const title = make("summary", {}, "Conditions, times and retries");
      return [
        identity(step, stepChanged),
        text(step, "name", "Name", stepChanged),
        ...whoOf(step, stepChanged, rebuild),
        dependencies(step, stepChanged),
        flag(step, "parallel", "In parallel with the step before it", stepChanged),
        text(step, "description", "Description", stepChanged, { rows: 3 }),
        json(step, "params", "Parameters, as JSON", stepChanged),
        make("details", { class: "orc-more", open: isSet }, title, make("div", { class: "orc-grid" }, ...more)),
        ...othersOf(step),
      ];
    }

    function identity(step, stepChanged) {
      const field = text(step, "id", "Id", stepChanged);
      const control = field.querySelector("input");
      let before = step.id;
      // When the id is complete, update the steps that depend on it.
      control.addEventListener("change", () => {
        for (const other of data.steps) {
          if (Array.isArray(other.depends_on)) {
            other.depends_on = other.depends_on.map((id) => (id === before ? step.id : id));
          }
        }
        before = step.id;
        for (const refresh of list.querySelectorAll("[data-dependencies]")) refresh.dispatchEvent(new Event("refresh"));
        changed();
      });
      return field;
    }

    function whoOf(step, stepChanged, rebuild) {
      const kinds = { agent_role: "An agent", human_role: "A person", template: "From a template" };
      const kind = Object.keys(kinds).find((key) => key in step) ?? "agent_role";
      const control = make("select", { on: { change: () => {
        for (const key of ["agent_role", "human_role"]) delete step[key];
        if (control.value !== "template") delete step.template;
        delete step.requires_approval;
        delete step.is_approval_gate;
        step[control.value] = control.value === "agent_role" ? config.roles[0] : control.value === "template" ? templates[0] ?? "" : "";
        rebuild();
      } } }, ...Object.entries(kinds).map(([value, words]) => make("option", { value, selected: value === kind }, words)));
      const who = labelled("Done by", "who", control);
      if (kind === "agent_role") {
        const roles = config.roles.map((role) => [role, role]);
        return [who, choice(step, "agent_role", "Agent", roles, stepChanged), flag(step, "requires_approval", "A person approves its output", stepChanged)];
      }
      if (kind === "human_role") {
        return [
          who,
          text(step, "human_role", "Role of the person", stepChanged),
          flag(step, "is_approval_gate", "Asks for approval", stepChanged),
          number(step, "due_seconds", "Due after, seconds", stepChanged),
        ];
      }
      return [who, choice(step, "template", "Template", templates.map((key) => [key, key]), stepChanged)];
    }

    // Not set: after the step before it. An empty list: immediately. Else after these steps.
    function dependencies(step, stepChanged) {
      const mode = make("select", { "data-field": "depends_on", "aria-label": "Depends on" });
      const boxes = make("span", { class: "orc-boxes", "data-dependencies": "" });
      const faults = make("span", { class: "orc-error", "data-faults": "depends_on" });
      const refresh = () => {
        const ids = step.depends_on;
        const present = ids === undefined ? "before" : Array.isArray(ids) && ids.length === 0 ? "nothing" : "these";
        const options = { before: "the step before it", nothing: "nothing: it starts immediately", these: "these steps:" };
        mode.replaceChildren(...Object.entries(options).map(([value, words]) => make("option", { value, selected: value === present }, words)));
        choose(mode.value);
      };
      const choose = (value) => {
        boxes.replaceChildren();
        if (value !== "these") return;
        for (const other of data.steps) {
          if (other === step || !other || !other.id) continue;
          const box = make("input", {
            type: "checkbox", checked: (step.depends_on ?? []).includes(other.id),
            on: { change: () => {
              const chosen = new Set(step.depends_on ?? []);
              if (box.checked) chosen.add(other.id); else chosen.delete(other.id);
              step.depends_on = data.steps.map((each) => each.id).filter((id) => chosen.has(id));
              stepChanged();
            } },
          });
          boxes.append(make("label", { class: "orc-flag" }, box, other.id));
        }
      };
      mode.addEventListener("change", () => {
        if (mode.value === "before") delete step.depends_on;
        else step.depends_on = [];
        choose(mode.value);
        stepChanged();
      });
      boxes.addEventListener("refresh", refresh);
      refresh();
      const title = make("span", { class: "orc-label" }, "Depends on");
      return make("div", { class: "orc-control" }, title, mode, boxes, faults);
    }

    function retryOf(step, stepChanged) {
      const retry = typeof step.retry === "object" && step.retry !== null ? step.retry : {};
      const saveRetry = () => {
        set(step, "retry", Object.keys(retry).length ? retry : undefined);
        stepChanged();
      };
      return [
        number(retry, "max_attempts", "Attempts", saveRetry, { holder: "retry" }),
        choice(retry, "strategy", "Delay between attempts", [
          ["", "from the agent's settings"], ["exponential", "exponential"], ["linear", "linear"], ["fixed", "fixed"],
        ], saveRetry, { holder: "retry.strategy" }),
        number(retry, "base_seconds", "First delay, seconds", saveRetry, { holder: "retry.base_seconds" }),
        number(retry, "max_seconds", "Longest delay, seconds", saveRetry, { holder: "retry.max_seconds" }),
      ];
    }

    // Members without fields here are kept unchanged.
    function othersOf(step) {
      const known = new Set(["id", "name", "description", "template", "agent_role", "human_role", "is_approval_gate", "requires_approval",
        "depends_on", "parallel", "on_upstream_failure", "when", "for_each", "params", "retry", "timeout_seconds", "due_seconds",
        "dependency_timeout_seconds"]);
      const others = Object.keys(step).filter((key) => !known.has(key));
      return others.length ? [make("p", { class: "orc-others" }, `Only in the text: ${others.join(", ")}`)] : [];
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    for (const area of document.querySelectorAll("textarea[data-editor]")) edit(area);
  });
})();
