// Passkey forms, whose value comes from a dialog of the browser. They stay hidden without scripts or browser support.
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
          ? "This device already has one of your passkeys."
          : "The browser did not provide a passkey. Try again, or use another method.");
      }
    });
  }
})();
