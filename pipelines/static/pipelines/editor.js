// The pipeline editor: the steps as a list beside the text, in step with it, and the picture of both.
//
// The text is what is saved. A change in the list writes it again at once, as JSON, and the server's answer to the check brings it back
// as YAML, with every fault by its path and the picture. Without this script the text is edited alone.
"use strict";

(() => {
  const { make, set, labelled, text, number, flag, choice, json } = OrcFields;
  const PATIENCE = 350; // milliseconds after the last key before the server is asked
  const OPEN_BELOW = 3; // longer lists begin closed
  const FAULT_OF_STEP = /^steps\[(\d+)\](?:\.([A-Za-z_]+))?/;

  function edit(area) {
    const config = JSON.parse(area.dataset.editor);
    const form = area.form;
    let data = null; // the definition, as data
    let shown = "steps";
    let asked = 0;
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
    area.addEventListener("input", soon);
    form.addEventListener("change", (event) => { if (event.target.name === "tenant") soon(); });
    form.elements.tenant?.addEventListener?.("change", soon);
    window.jQuery?.(form.elements.tenant).on("change", soon);
    show("steps");
    check();

    function show(view) {
      shown = view;
      for (const [name, tab] of Object.entries(tabs)) tab.setAttribute("aria-selected", String(name === view));
      steps.hidden = view !== "steps";
      area.hidden = view !== "text";
      if (view === "steps" && data) build();
    }

    function soon() {
      clearTimeout(timer);
      state.textContent = "…";
      timer = setTimeout(check, PATIENCE);
    }

    // A change in the list: the text says it at once, so that saving never saves less than what is seen.
    function changed() {
      area.value = JSON.stringify(data, null, 2);
      soon();
    }

    async function check() {
      clearTimeout(timer);
      const mine = ++asked;
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
        if (mine === asked) state.textContent = "Not checked: the server does not answer.";
        return;
      }
      if (mine !== asked || area.value !== sent) return; // something newer is under way
      take(answer);
    }

    function take(answer) {
      const isNew = JSON.stringify(templates) !== JSON.stringify(answer.templates);
      templates = answer.templates;
      if (shown === "text" || data === null) {
        data = answer.definition;
        if (shown === "steps") data ? build() : show("text");
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
      drawn.hidden = !answer.svg; // that of an older text would contradict the faults beside it
      tell(answer.faults, answer.missing);
    }

    // Every fault at its field; what has no field here, at its step or above all.
    function tell(faults, missing) {
      for (const spot of steps.querySelectorAll("[data-faults]")) spot.textContent = "";
      general.replaceChildren();
      for (const item of list.children) item.classList.remove("faulty");
      for (const { path, message } of faults) {
        const found = FAULT_OF_STEP.exec(path);
        const item = found ? list.children[Number(found[1])] : null;
        const within = item ?? head;
        item?.ensure?.();
        const key = found ? found[2] : path.split(/[.[]/)[0];
        const spot = within.querySelector(`[data-faults="${key}"]`) ?? item?.querySelector('[data-faults=""]');
        if (spot) spot.textContent += `${spot.textContent ? " " : ""}${path}: ${message}.`;
        if (!spot || shown === "text") general.append(make("li", {}, path ? `${path}: ${message}` : message));
        if (item) item.classList.add("faulty");
        for (let each = spot?.closest("details"); each; each = each.parentElement.closest("details")) each.open = true;
      }
      const count = `${faults.length} ${faults.length === 1 ? "fault" : "faults"}`;
      state.textContent = faults.length ? count : missing || "Nothing wrong";
      state.classList.toggle("orc-error", faults.length > 0);
    }

    // ---- The list

    function build() {
      if (!Array.isArray(data.steps)) data.steps = [];
      head.replaceChildren(
        text(data, "key", "Key", changed, { hint: config.pipeline ? "Stays what it is." : "Its name for programs." }),
        text(data, "name", "Name", changed),
        text(data, "description", "Description", changed, { rows: 2 }),
        text(data, "subject", "What a run is about", changed, { hint: "Made of its parameters, such as {{ topic }} for {{ client }}." }),
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
      const [gone] = data.steps.splice(index, 1);
      for (const step of data.steps) {
        if (Array.isArray(step.depends_on)) step.depends_on = step.depends_on.filter((id) => id !== gone.id);
      }
      build();
      changed();
    }

    function row(step, index) {
      if (typeof step !== "object" || step === null) return make("li", {}, "This step can be edited in the text only.");
      const title = make("span", { class: "orc-step-title" });
      const button = (words, label, act, off) =>
        make("button", { type: "button", class: "orc-plain", disabled: off, "aria-label": label, on: {
          click: (event) => { event.preventDefault(); act(); },
        } }, words);
      const summary = make("summary", {}, title,
        button("↑", "Earlier", () => move(index, -1), index === 0),
        button("↓", "Later", () => move(index, 1), index === data.steps.length - 1),
        button("Remove", "Remove the step", () => remove(index), false));
      const name = () => {
        title.textContent = `${index + 1}. ${step.name || step.id || "?"} — ${step.agent_role || step.human_role || step.template || "?"}`;
      };
      const noted = () => { name(); changed(); };
      name();
      const fields = make("div", { class: "orc-grid" });
      const fill = () => fields.replaceChildren(...fieldsOf(step, noted, () => { fill(); noted(); }));
      const rest = make("p", { class: "orc-error", "data-faults": "" });
      const open = data.steps.length <= OPEN_BELOW;
      // Filled when it is first looked at: a pipeline may have two thousand steps.
      const ensure = () => { if (!fields.childElementCount) fill(); };
      if (open) ensure();
      const item = make("li", {}, make("details", { open, on: { toggle: ensure } }, summary, rest, fields));
      item.ensure = ensure;
      return item;
    }

    function fieldsOf(step, noted, again) {
      const more = [
        text(step, "when", "Only when", noted, { hint: "An expression over the outputs of steps before." }),
        text(step, "for_each", "For each of", noted, { hint: "An expression that gives a list." }),
        choice(step, "on_upstream_failure", "When a step before fails", [
          ["", "fail (the default)"], ["fail", "fail"], ["skip", "skip"], ["continue", "continue"],
        ], noted),
        number(step, "dependency_timeout_seconds", "Waits for steps before, seconds", noted),
        number(step, "timeout_seconds", "Timeout of an attempt, seconds", noted),
        ...retryOf(step, noted),
      ];
      const said = ["when", "for_each", "dependency_timeout_seconds", "timeout_seconds", "retry"].some((key) => key in step)
        || (step.on_upstream_failure ?? "fail") !== "fail";
      const title = make("summary", {}, "Conditions, times and retries");
      return [
        identity(step, noted),
        text(step, "name", "Name", noted),
        ...whoOf(step, noted, again),
        dependencies(step, noted),
        flag(step, "parallel", "Beside the step before it", noted),
        text(step, "description", "What there is to do", noted, { rows: 3 }),
        json(step, "params", "Parameters, as JSON", noted),
        make("details", { class: "orc-more", open: said }, title, make("div", { class: "orc-grid" }, ...more)),
        ...othersOf(step),
      ];
    }

    function identity(step, noted) {
      const field = text(step, "id", "Id", noted);
      const control = field.querySelector("input");
      let before = step.id;
      // Others name it by its id: they follow when it is done being typed.
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

    function whoOf(step, noted, again) {
      const kinds = { agent_role: "An agent", human_role: "A person", template: "As the template says" };
      const kind = Object.keys(kinds).find((key) => key in step) ?? "agent_role";
      const control = make("select", { on: { change: () => {
        for (const key of ["agent_role", "human_role"]) delete step[key];
        if (control.value !== "template") delete step.template;
        delete step.requires_approval;
        delete step.is_approval_gate;
        step[control.value] = control.value === "agent_role" ? config.roles[0] : control.value === "template" ? templates[0] ?? "" : "";
        again();
      } } }, ...Object.entries(kinds).map(([value, words]) => make("option", { value, selected: value === kind }, words)));
      const who = labelled("Done by", "who", control);
      if (kind === "agent_role") {
        const roles = config.roles.map((role) => [role, role]);
        return [who, choice(step, "agent_role", "Agent", roles, noted), flag(step, "requires_approval", "A person approves its output", noted)];
      }
      if (kind === "human_role") {
        return [
          who,
          text(step, "human_role", "Role of the person", noted),
          flag(step, "is_approval_gate", "Asks for approval", noted),
          number(step, "due_seconds", "Due after, seconds", noted),
        ];
      }
      return [who, choice(step, "template", "Template", templates.map((key) => [key, key]), noted)];
    }

    // Not said: after the step before it. An empty list: at once. Else these steps.
    function dependencies(step, noted) {
      const mode = make("select", { "data-field": "depends_on", "aria-label": "Depends on" });
      const boxes = make("span", { class: "orc-boxes", "data-dependencies": "" });
      const faults = make("span", { class: "orc-error", "data-faults": "depends_on" });
      const refresh = () => {
        const named = step.depends_on;
        const present = named === undefined ? "before" : Array.isArray(named) && named.length === 0 ? "nothing" : "these";
        const options = { before: "the step before it", nothing: "nothing: it starts at once", these: "these steps:" };
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
              noted();
            } },
          });
          boxes.append(make("label", { class: "orc-flag" }, box, other.id));
        }
      };
      mode.addEventListener("change", () => {
        if (mode.value === "before") delete step.depends_on;
        else step.depends_on = [];
        choose(mode.value);
        noted();
      });
      boxes.addEventListener("refresh", refresh);
      refresh();
      const title = make("span", { class: "orc-label" }, "Depends on");
      return make("div", { class: "orc-control" }, title, mode, boxes, faults);
    }

    function retryOf(step, noted) {
      const retry = typeof step.retry === "object" && step.retry !== null ? step.retry : {};
      const kept = () => {
        set(step, "retry", Object.keys(retry).length ? retry : undefined);
        noted();
      };
      return [
        number(retry, "max_attempts", "Attempts", kept, { holder: "retry" }),
        choice(retry, "strategy", "Delay between attempts", [
          ["", "as the agent's"], ["exponential", "exponential"], ["linear", "linear"], ["fixed", "fixed"],
        ], kept, { holder: "retry.strategy" }),
        number(retry, "base_seconds", "First delay, seconds", kept, { holder: "retry.base_seconds" }),
        number(retry, "max_seconds", "Longest delay, seconds", kept, { holder: "retry.max_seconds" }),
      ];
    }

    // What this list has no fields for stays as it is.
    function othersOf(step) {
      const known = new Set(["id", "name", "description", "template", "agent_role", "human_role", "is_approval_gate", "requires_approval",
        "depends_on", "parallel", "on_upstream_failure", "when", "for_each", "params", "retry", "timeout_seconds", "due_seconds",
        "dependency_timeout_seconds"]);
      const others = Object.keys(step).filter((key) => !known.has(key));
      return others.length ? [make("p", { class: "orc-others" }, `In the text only: ${others.join(", ")}`)] : [];
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    for (const area of document.querySelectorAll("textarea[data-editor]")) edit(area);
  });
})();
