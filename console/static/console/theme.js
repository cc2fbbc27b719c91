// Light or dark: the system's setting, or the person's choice in this browser. Runs before the page is rendered.
"use strict";

(() => {
  const KEPT = "theme";
  const root = document.documentElement;
  const system = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const chosen = () => localStorage.getItem(KEPT) || "";
  const show = () => { if (chosen()) root.dataset.theme = chosen(); else delete root.dataset.theme; };
  const name = (button) => { button.textContent = (chosen() || system()) === "dark" ? "Light colours" : "Dark colours"; };

  show();
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.querySelector("#theme");
    if (!button) return;
    button.hidden = false;
    name(button);
    button.addEventListener("click", () => {
      const wanted = (chosen() || system()) === "dark" ? "light" : "dark";
      if (wanted === system()) localStorage.removeItem(KEPT);
      else localStorage.setItem(KEPT, wanted);
      show();
      name(button);
    });
  });
})();
