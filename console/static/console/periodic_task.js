// Says in words what the chosen crontab means, as the package's own script does inside its page.
"use strict";

const words = JSON.parse(document.getElementById("readable-crontabs").textContent);
const chosen = document.getElementById("id_crontab");
if (chosen) {
  const said = document.createElement("p");
  chosen.closest(".field-crontab, .field-line, div").append(said);
  const tell = () => { said.textContent = words[chosen.value] ? `Translation: ${words[chosen.value]}` : ""; };
  chosen.addEventListener("change", tell);
  tell();
}
