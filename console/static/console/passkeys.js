// Passkeys: a form whose answer comes from the browser's own dialogue. Without scripts, or in a browser that knows none, it stays hidden.
"use strict";

(() => {
  const knows = window.PublicKeyCredential && PublicKeyCredential.parseRequestOptionsFromJSON;
  if (!knows) return;

  const options = (form) => JSON.parse(document.getElementById(form.dataset.options).textContent);
  const answer = (form) => form.dataset.passkey === "passkey"
    ? navigator.credentials.get({ publicKey: PublicKeyCredential.parseRequestOptionsFromJSON(options(form)) })
    : navigator.credentials.create({ publicKey: PublicKeyCredential.parseCreationOptionsFromJSON(options(form)) });

  const complain = (form, text) => {
    const line = form.querySelector(".complaint") || document.createElement("p");
    line.className = "complaint";
    line.setAttribute("role", "alert");
    line.textContent = text;
    form.querySelector("h1, h2").after(line);
  };

  for (const form of document.querySelectorAll("form[data-passkey]")) {
    form.hidden = false;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const button = form.querySelector("button");
      button.disabled = true;
      try {
        form.elements[form.dataset.passkey].value = JSON.stringify((await answer(form)).toJSON());
        form.submit();
      } catch (error) {
        button.disabled = false;
        complain(form, error.name === "InvalidStateError"
          ? "This device has a passkey of yours already."
          : "The browser gave no passkey. Try again, or use another way.");
      }
    });
  }
})();
