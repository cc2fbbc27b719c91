// Displays the chosen crontab in words, like the inline script of the package.
"use strict";

const words = JSON.parse(document.getElementById("readable-crontabs").textContent);
const chosen = document.getElementById("id_crontab");
if (chosen) {
  const line = document.createElement("p");
  chosen.closest(".field-crontab, .field-line, div").append(line);
  const update = () => { line.textContent = words[chosen.value] ? `Translation: ${words[chosen.value]}` : ""; };
  chosen.addEventListener("change", update);
  update();
}
